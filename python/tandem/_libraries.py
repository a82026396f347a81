"""Finds the libraries of other packages that tandem runs on, before any library of its own is loaded.

The packages are located without being imported. libexecutorch is opened by its path, so that tandem's libraries get
the one that `executorch` brings wherever tandem itself was installed. Vendors look for their libraries themselves,
beside libexecutorch among other places if that folder is a site-packages or dist-packages; they are told only of
packages that lie elsewhere on sys.path (`pip install --target` makes such a folder), and not where the user named a
library.
"""

import ctypes
import importlib.util
import os
import pathlib
import re

EXECUTORCH = "1.5."  # what the versions that tandem's plug-in is binary compatible with begin with
MEND = "pip install executorch==1.5.1"

# Variable; others that speak for it; packages with the library, the first that is there counts.
VENDORS = (
    ("TANDEM_OPENVINO_LIBRARY", ("OPENVINO_LIB_PATH",), (("openvino", "libs"),)),
    (
        "TANDEM_TENSORRT_LIBRARY",
        ("TANDEM_TENSORRT_RUNTIME",),
        (("tensorrt_libs", ""), ("tensorrt_lean_libs", ""), ("tensorrt_rtx_libs", "")),
    ),
)
SEARCHED = ("site-packages", "dist-packages")  # names of folders that vendors know Python's packages by


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
    """Loads libexecutorch for this process and tells vendors of packages that they would not find; its path."""
    library = find_executorch()
    ctypes.CDLL(str(library))
    for variable, others, packages in VENDORS:
        if any(os.environ.get(name) for name in (variable, *others)):
            continue
        for name, inner in packages:
            package = find_package(name)
            if package is not None:
                if package.parent != library.parents[2] or package.parent.name not in SEARCHED:
                    os.environ[variable] = str(package / inner)
                break
    return library
