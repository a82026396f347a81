"""Models for `export.py --model`."""

import torch


def build_big():
    """150 MiB of float32 weights; the model `big` of tests/python."""
    torch.manual_seed(1)
    layers = [layer for _ in range(6) for layer in (torch.nn.Linear(2560, 2560), torch.nn.ReLU())]
    return torch.nn.Sequential(*layers).eval(), (torch.zeros(1, 2560),)


class Sum(torch.nn.Module):
    def forward(self, image: torch.Tensor, state: torch.Tensor) -> torch.Tensor:
        return (image.mean() + state).reshape(1, 1, 8)


def build_other():
    """A policy for images of another size than the robots' of robot_node.py."""
    return Sum(), (torch.zeros(1, 3, 32, 32), torch.zeros(1, 8))
