"""Ordinary programs, exported by torch and lowered by ExecuTorch, with backend id and payload of the test's own."""

import functools

import torch
from executorch.exir import EdgeCompileConfig, to_edge_transform_and_lower
from executorch.exir.backend.backend_details import BackendDetails, PreprocessResult
from executorch.exir.backend.partitioner import DelegationSpec, Partitioner, PartitionResult
from executorch.exir.backend.utils import tag_constant_data

PAYLOADS = {}  # by backend id


@functools.cache  # ExecuTorch finds the backend's class by its name: one class a name
def make_partitioner(backend):
    """One that puts the whole program into one delegate, which takes its payload from PAYLOADS."""

    def preprocess(program, compile_specs):
        return PreprocessResult(processed_bytes=PAYLOADS[backend])

    def partition(self, program):
        for node in program.graph.nodes:
            if node.op == "call_function":
                node.meta["delegation_tag"] = "all"
        tag_constant_data(program)
        return PartitionResult(program, {"all": DelegationSpec(kind.__name__, [])})

    kind = type(backend, (BackendDetails,), {"preprocess": staticmethod(preprocess)})
    return type("Everything", (Partitioner,), {"partition": partition})()


def write_program(path, module, inputs, backend, payload):
    """The program of `module` at `path`: one delegate of `backend`, whatever the module's arithmetic."""
    PAYLOADS[backend] = payload
    lowered = to_edge_transform_and_lower(
        torch.export.export(module, inputs),
        partitioner=[make_partitioner(backend)],
        compile_config=EdgeCompileConfig(_check_ir_validity=False),
    )
    with open(path, "wb") as file:
        lowered.to_executorch().write_to_file(file)
