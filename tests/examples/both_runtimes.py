"""Runs programs of export.py's policy in both runtimes and compares with PyTorch. Usage: both_runtimes.py PROGRAM...

Prints for each how many engines were built and how many loads found one.
"""

import pathlib
import sys

import numpy as np

import tandem  # isort: skip  before executorch.runtime
import torch
from executorch.runtime import Runtime

sys.path.insert(0, str(pathlib.Path(__file__).parents[2] / "examples"))
import export

model, inputs = export.small_policy()
with torch.no_grad():
    wanted = model(*inputs).numpy()
most = abs(wanted).max()

for path in sys.argv[1:]:
    before = tandem.stats()
    method = tandem.Runtime.get().load_program(path).load_method("forward")
    (own,) = method.execute([value.numpy() for value in inputs])
    program = Runtime.get().load_program(path)
    (stock,) = program.load_method("forward").execute(inputs)
    stock = stock.numpy()
    assert own.shape == stock.shape == wanted.shape == (1, 16, 8) and own.dtype == stock.dtype == wanted.dtype
    assert np.array_equal(own, stock), (path, abs(own - stock).max())
    # A CPU may compute in bfloat16, whose steps are 1/256 near 1.
    assert abs(own - wanted).max() < 0.02 * most, (path, abs(own - wanted).max(), most)
    after = tandem.stats()
    print(pathlib.Path(path).stem, after.builds - before.builds, after.hits - before.hits)
