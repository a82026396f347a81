"""Programs with memory on a CUDA device in ExecuTorch's own Python runtime, over the stand-in driver.

That runtime asks for an allocator before it loads delegates. Its wheel has none: the plug-in brings it.
"""

import os
import pathlib
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
BUILD = pathlib.Path(os.environ.get("TANDEM_BUILD", ROOT / "build/release"))
DRIVER = BUILD / "tests/standin/cuda/libcuda.so.1"

# The demo's backend is registered by other tests only, so a load ends at the delegate, after memory was planned.
LOAD = """
import ctypes, sys
if sys.argv[2]:
    ctypes.CDLL(sys.argv[2])
from executorch.runtime import Runtime
try:
    Runtime.get().load_program(sys.argv[1]).load_method("forward")
except RuntimeError as problem:
    print(problem)
"""


def load(plug_in, driver):
    """What the stock runtime says of a program whose memory is on cuda:0, and what went to stderr."""
    pytest.importorskip("torch")
    done = subprocess.run(
        [sys.executable, "-c", LOAD, ROOT / "tests/data/demo_device.pte", plug_in], capture_output=True, text=True,
        timeout=240, env={**os.environ, "TANDEM_CUDA_LIBRARY": str(driver)},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout, done.stderr


def test_without_the_plug_in_there_is_no_memory_to_plan():
    out, _ = load("", DRIVER)
    assert "Failed to allocate" in out and "device 1:0" in out


def test_with_the_plug_in_memory_is_planned_on_the_device():
    out, err = load(BUILD / "libtandem_executorch.so", DRIVER)
    assert "Failed to allocate" not in out
    assert "DemoBackend" in out + err


def test_without_a_driver_the_plug_in_says_what_is_missing():
    out, err = load(BUILD / "libtandem_executorch.so", "/nowhere/libcuda.so.1")
    assert "Failed to allocate" in out
    assert "tandem: the program plans memory on a CUDA device and there is no CUDA driver: /nowhere" in err
