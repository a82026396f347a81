"""Programs of one fake delegate each: make_fake_programs.py FAKE_LIBRARY FOLDER.

Ordinary programs, exported by torch and lowered by ExecuTorch; only backend id and payload are the fake vendor's.
Beside NAME.pte lies NAME.npy: the input and the output that the payload's weights give for it.
"""

import ctypes
import pathlib
import sys

import numpy as np
import torch

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent / "python")]

from doors import Model, declare  # noqa: E402
from lowering import write_program  # noqa: E402


class Affine(torch.nn.Module):
    def forward(self, x):
        return x * 2 + 1


def write(library, folder, name, seed):
    model = Model(rank=1, min=(4,), max=(4,), cost=1000, seed=seed)
    size = ctypes.c_size_t()
    address = library.fake_payload_create(ctypes.byref(model), ctypes.byref(size))
    payload = ctypes.string_at(address, size.value)
    x, y = np.arange(4, dtype=np.float32), np.zeros(4, np.float32)
    library.fake_expect(
        ctypes.byref(model), x.ctypes.data, ctypes.c_size_t(4), ctypes.c_float(0), ctypes.c_void_p(y.ctypes.data)
    )
    write_program(folder / f"{name}.pte", Affine(), (torch.zeros(4),), "FakeBackend", payload)
    np.save(folder / f"{name}.npy", np.stack([x, y]))


def main():
    import tandem  # noqa: F401  the fake vendor's library needs its libtandem

    library = declare(ctypes.CDLL(sys.argv[1]))
    for seed, name in enumerate(("one", "two"), 1):
        write(library, pathlib.Path(sys.argv[2]), name, seed)


if __name__ == "__main__":
    main()
