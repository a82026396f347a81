"""Programs, fresh processes and figures for the tests of the Python package: those of tests/python, and the doors.

A test is marked `fresh` where the order of imports or the counts of a process matter: nothing of tandem or ExecuTorch
is loaded in the process that collects the tests.
"""

import importlib.util
import os
import pathlib
import subprocess
import sys

import pytest

HERE = pathlib.Path(__file__).resolve().parent
PEER = HERE.parent / "python"
ROOT = HERE.parents[1]
BUILD = pathlib.Path(os.environ.get("TANDEM_BUILD", ROOT / "build/release"))

sys.path[:0] = [str(HERE), str(PEER)]
spec = importlib.util.spec_from_file_location("peer", PEER / "conftest.py")
peer = importlib.util.module_from_spec(spec)
spec.loader.exec_module(peer)

data, figures, models, models_2025, library_2025 = (
    peer.data,
    peer.figures,
    peer.models,
    peer.models_2025,
    peer.library_2025,
)
pytest_configure = peer.pytest_configure
pytest_pyfunc_call = peer.pytest_pyfunc_call
pytest_terminal_summary = peer.pytest_terminal_summary


def vendor_library(name):
    path = BUILD / f"tests/package/lib{name}_vendor.so"
    assert path.exists(), f"{path} is missing: build with TANDEM_TESTS=ON"
    return path


@pytest.fixture(scope="session")
def fake_library():
    """The fake vendor (tests/vendors) as a library; doors.Fake opens it."""
    return vendor_library("fake")


@pytest.fixture(scope="session")
def demo_library():
    """The demo vendor (tests/adapter) as a library; doors.register_demo opens it."""
    return vendor_library("demo")


@pytest.fixture(scope="session")
def fake_programs(fake_library, tmp_path_factory):
    """A folder with one.pte and two.pte: float32[4] -> float32[4], each one delegate of the fake vendor."""
    folder = tmp_path_factory.mktemp("fake")
    make = [sys.executable, HERE / "make_fake_programs.py", fake_library, folder]
    done = subprocess.run(make, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr[-4000:]
    return folder
