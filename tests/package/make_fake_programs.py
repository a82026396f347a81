"""Programs of one fake delegate each: make_fake_programs.py FAKE_LIBRARY FOLDER.

Ordinary programs, exported by torch and lowered by ExecuTorch; only backend id and payload are the fake vendor's.
Beside NAME.pte lies NAME.npy: the input and the output that the payload's weights give for it.
"""

import ctypes
import pathlib
import sys

import numpy as np
import torch
from doors import Model, declare
from executorch.exir import EdgeCompileConfig, to_edge_transform_and_lower
from executorch.exir.backend.backend_details import BackendDetails, PreprocessResult
from executorch.exir.backend.partitioner import DelegationSpec, Partitioner, PartitionResult
from executorch.exir.backend.utils import tag_constant_data

PAYLOAD = b""


class FakeBackend(BackendDetails):
    @staticmethod
    def preprocess(program, compile_specs):
        return PreprocessResult(processed_bytes=PAYLOAD)


class Everything(Partitioner):
    def partition(self, program):
        for node in program.graph.nodes:
            if node.op == "call_function":
                node.meta["delegation_tag"] = "all"
        tag_constant_data(program)
        return PartitionResult(program, {"all": DelegationSpec(FakeBackend.__name__, [])})


class Affine(torch.nn.Module):
    def forward(self, x):
        return x * 2 + 1


def write(library, folder, name, seed):
    global PAYLOAD
    model = Model(rank=1, min=(4,), max=(4,), cost=1000, seed=seed)
    size = ctypes.c_size_t()
    address = library.fake_payload_create(ctypes.byref(model), ctypes.byref(size))
    PAYLOAD = ctypes.string_at(address, size.value)
    x, y = np.arange(4, dtype=np.float32), np.zeros(4, np.float32)
    library.fake_expect(
        ctypes.byref(model), x.ctypes.data, ctypes.c_size_t(4), ctypes.c_float(0), ctypes.c_void_p(y.ctypes.data)
    )
    exported = torch.export.export(Affine(), (torch.zeros(4),))
    lowered = to_edge_transform_and_lower(
        exported, partitioner=[Everything()], compile_config=EdgeCompileConfig(_check_ir_validity=False)
    )
    with open(folder / f"{name}.pte", "wb") as file:
        lowered.to_executorch().write_to_file(file)
    np.save(folder / f"{name}.npy", np.stack([x, y]))


def main():
    import tandem  # noqa: F401  the fake vendor's library needs its libtandem

    library = declare(ctypes.CDLL(sys.argv[1]))
    for seed, name in enumerate(("one", "two"), 1):
        write(library, pathlib.Path(sys.argv[2]), name, seed)


if __name__ == "__main__":
    main()
