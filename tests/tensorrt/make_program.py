"""Wraps delegate payloads into .pte programs of one TensorRTBackend delegate each.

    make_program.py PAYLOAD PROGRAM [PAYLOAD PROGRAM ...]

The program is an ordinary one, exported by torch and lowered by ExecuTorch: forward(x[2, 8]) -> y[2, 4]. Only
its backend id and payload are ours.
"""

import pathlib
import sys

import torch

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "python"))

from lowering import write_program


class Layer(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(8, 4)

    def forward(self, x):
        return torch.relu(self.linear(x))


if __name__ == "__main__":
    names = sys.argv[1:]
    for payload, program in zip(names[::2], names[1::2]):
        content = pathlib.Path(payload).read_bytes()
        write_program(program, Layer().eval(), (torch.zeros(2, 8),), "TensorRTBackend", content)
