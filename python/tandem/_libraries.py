"""Finds the libraries of other packages that tandem runs on, before any library of its own is loaded.

The packages are located without being imported. libexecutorch is opened by its path, so that tandem's libraries get
the one that `executorch` brings wherever tandem itself was installed. Vendors look for their libraries themselves
(vendors/search); they are told what only Python knows, the folders of sys.path.
"""

import ctypes
import importlib.util
import os
import pathlib
import re
import sys

EXECUTORCH = "1.5."  # what the versions that tandem's plug-in is binary compatible with begin with
MEND = "pip install executorch==1.5.1"


def find_package(name: str) -> pathlib.Path | None:
    """The folder of an installed package, which is not imported."""
    try:
        spec = importlib.util.find_spec(name)
    except (ImportError, ValueError):
        return None
    folders = spec.submodule_search_locations if spec else None
    return pathlib.Path(folders[0]) if folders else None


def find_executorch() -> pathlib.Path:
    """The installed ExecuTorch's libexecutorch.so.

    Raises ImportError, which tells what to install, when it is missing or of a version with another binary interface.
    """
    package = find_package("executorch")
    library = package / "lib" / "libexecutorch.so" if package else None
    if package is None or library is None or not library.exists():
        found = f"{package} has no lib/libexecutorch.so" if package else "it is not installed"
        raise ImportError(f"tandem needs ExecuTorch {EXECUTORCH}x with its shared runtime, but {found}: {MEND}")
    version_file = package / "version.py"
    text = version_file.read_text() if version_file.exists() else ""
    version = re.search(r"__version__.*= [\"']([^\"']+)", text)
    if not version or not version[1].startswith(EXECUTORCH):
        found = version[1] if version else "of an unknown version"
        raise ImportError(f"tandem needs ExecuTorch {EXECUTORCH}x, but {package} is {found}: {MEND}")
    return library


def open_executorch() -> pathlib.Path:
    """Loads libexecutorch for this process and tells vendors where Python looks for packages; its path."""
    library = find_executorch()
    ctypes.CDLL(str(library))
    os.environ["TANDEM_PYTHON_PATH"] = os.pathsep.join(folder for folder in sys.path if os.path.isabs(folder))
    return library
