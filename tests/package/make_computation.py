"""computation.pte in FOLDER: an OpenVINO program that is bound by arithmetic, some ten milliseconds on one core."""

import pathlib
import sys

import models
import torch


def main():
    torch.manual_seed(1)
    layers = [torch.nn.Conv2d(3, 64, 3)]
    for _ in range(3):
        layers += [torch.nn.ReLU(), torch.nn.Conv2d(64, 64, 3)]
    module = torch.nn.Sequential(*layers, torch.nn.AdaptiveAvgPool2d(1)).eval()
    models.make_simple(pathlib.Path(sys.argv[1]), "computation", module, (torch.rand(1, 3, 96, 96),))


if __name__ == "__main__":
    main()
