"""Finds the libraries of other packages that tandem runs on, before any of its own is loaded."""

import ctypes
import importlib.util
import pathlib


def find_executorch() -> pathlib.Path:
    """The folder of libexecutorch.so, without importing executorch."""
    spec = importlib.util.find_spec("executorch")
    for location in (spec and spec.submodule_search_locations) or ():
        folder = pathlib.Path(location, "lib")
        if (folder / "libexecutorch.so").exists():
            return folder
    raise ImportError("tandem needs ExecuTorch, which is not installed: pip install executorch==1.5.1")


def open_executorch() -> None:
    """Loads libexecutorch, so that tandem's libraries find it wherever it lies."""
    ctypes.CDLL(str(find_executorch() / "libexecutorch.so"))
