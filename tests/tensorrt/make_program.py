"""Wraps delegate payloads into .pte programs of one TensorRTBackend delegate each.

    make_program.py PAYLOAD PROGRAM [PAYLOAD PROGRAM ...]

The program is an ordinary one, exported by torch and lowered by ExecuTorch: forward(x[2, 8]) -> y[2, 4]. Only
its backend id and payload are ours.
"""

import pathlib
import sys

import torch
from executorch.exir import EdgeCompileConfig, to_edge_transform_and_lower
from executorch.exir.backend.backend_details import BackendDetails, PreprocessResult
from executorch.exir.backend.partitioner import DelegationSpec, Partitioner, PartitionResult
from executorch.exir.backend.utils import tag_constant_data

PAYLOAD = b""


class TensorRTBackend(BackendDetails):
    @staticmethod
    def preprocess(program, compile_specs):
        return PreprocessResult(processed_bytes=PAYLOAD)


class Everything(Partitioner):
    def partition(self, program):
        for node in program.graph.nodes:
            if node.op == "call_function":
                node.meta["delegation_tag"] = "all"
        tag_constant_data(program)
        return PartitionResult(program, {"all": DelegationSpec(TensorRTBackend.__name__, [])})


class Layer(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(8, 4)

    def forward(self, x):
        return torch.relu(self.linear(x))


def write(payload, path):
    global PAYLOAD
    PAYLOAD = payload
    exported = torch.export.export(Layer().eval(), (torch.zeros(2, 8),))
    lowered = to_edge_transform_and_lower(
        exported, partitioner=[Everything()], compile_config=EdgeCompileConfig(_check_ir_validity=False)
    )
    with open(path, "wb") as file:
        lowered.to_executorch().write_to_file(file)


if __name__ == "__main__":
    names = sys.argv[1:]
    for payload, program in zip(names[::2], names[1::2]):
        write(pathlib.Path(payload).read_bytes(), program)
