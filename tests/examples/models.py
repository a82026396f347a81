"""Models for `export.py --model`."""

import torch


def build_big():
    """150 MiB of float32 weights; the model `big` of tests/python."""
    torch.manual_seed(1)
    layers = [layer for _ in range(6) for layer in (torch.nn.Linear(2560, 2560), torch.nn.ReLU())]
    return torch.nn.Sequential(*layers).eval(), (torch.zeros(1, 2560),)
