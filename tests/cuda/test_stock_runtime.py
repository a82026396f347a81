"""Programs with memory on a CUDA device in ExecuTorch's own Python runtime, over the stand-in driver.

That runtime asks for an allocator before it loads delegates. Its wheel has none: the plug-in brings it.
"""

import ctypes
import os
import pathlib
import sys

import pytest

pytest.importorskip("torch")
ROOT = pathlib.Path(__file__).resolve().parents[2]
BUILD = pathlib.Path(os.environ.get("TANDEM_BUILD", ROOT / "build/release"))
DRIVER = BUILD / "tests/standin/cuda/libcuda.so.1"

sys.path.insert(0, str(ROOT / "tests/python"))
import executorch.exir._warnings  # noqa: E402, F401  most of what executorch.runtime imports, and none of its libraries
import fresh  # noqa: E402


def load_program(plug_in):
    """The demo's backend is registered by other tests only: a load ends at the delegate, after memory was planned."""
    if plug_in:
        ctypes.CDLL(plug_in)
    from executorch.runtime import Runtime

    with pytest.raises(RuntimeError) as problem:
        Runtime.get().load_program(ROOT / "tests/data/demo_device.pte").load_method("forward")
    return str(problem.value)


def load(plug_in, driver):
    """What the stock runtime says of a program whose memory is on cuda:0, and what went to stderr."""
    done = fresh.run(load_program, str(plug_in), timeout=240, environment={"TANDEM_CUDA_LIBRARY": driver})
    return done.good() + done.output, done.errors


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
