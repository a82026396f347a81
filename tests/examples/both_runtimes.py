"""Runs a program of export.py's policy in both runtimes and compares with PyTorch. Usage: both_runtimes.py PROGRAM."""

import pathlib
import sys

import numpy as np
import tandem  # before executorch.runtime
import torch
from executorch.runtime import Runtime

sys.path.insert(0, str(pathlib.Path(__file__).parents[2] / "examples"))
import export

path = sys.argv[1]
model, inputs = export.small_policy()
with torch.no_grad():
    wanted = model(*inputs).numpy()

method = tandem.Runtime.get().load_program(path).load_method("forward")
(own,) = method.execute([value.numpy() for value in inputs])
program = Runtime.get().load_program(path)
(stock,) = program.load_method("forward").execute(inputs)
stock = stock.numpy()

assert own.shape == stock.shape == wanted.shape == (1, 16, 8) and own.dtype == stock.dtype == wanted.dtype
assert np.array_equal(own, stock), abs(own - stock).max()
# A CPU may compute in bfloat16, whose steps are 1/256 near 1.
assert np.allclose(own, wanted, rtol=0.02, atol=0.01), abs(own - wanted).max()
assert not np.allclose(own, 0, atol=0.02), "the comparison would hold for zeros as well"
stats = tandem.stats()
print(stats.loads, stats.engines, stats.builds)
