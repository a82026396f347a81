"""The opt-in start-up hook, which `python -m tandem enable` writes into site-packages and `disable` removes.

Every interpreter of the environment runs a .pth line at its start, whether it ever needs tandem or not. So the line
carries its code with it, reads no file, imports nothing and only waits for the import of ExecuTorch's extension. When
tandem was uninstalled it stays silent.
"""

from __future__ import annotations

import inspect
import os
import pathlib
import sysconfig


def watch() -> None:
    import sys

    class TandemHook:
        @staticmethod
        def find_spec(name: str, path: object = None, target: object = None) -> None:
            if name != "executorch.extension.pybindings._C" or TandemHook not in sys.meta_path:
                return
            sys.meta_path.remove(TandemHook)
            try:
                import tandem  # noqa: F401
            except Exception as error:
                if getattr(error, "name", None) != "tandem":
                    import warnings

                    warnings.warn(f"tandem is enabled but not active: {error}", RuntimeWarning, stacklevel=2)

    sys.meta_path.insert(0, TandemHook)


def find_file() -> pathlib.Path:
    return pathlib.Path(sysconfig.get_path("purelib"), "tandem-executorch.pth")


def enable() -> pathlib.Path:
    """Returns the file that was written. Errors: OSError."""
    file = find_file()
    code = inspect.getsource(watch) + "watch()\n"
    whole = file.with_suffix(f".{os.getpid()}")  # no .pth, so that no interpreter starts with half a line
    whole.write_text(f"import sys; exec({code!r})\n")
    whole.replace(file)
    return file


def disable() -> pathlib.Path | None:
    """Returns the file that was removed, None when there was none. Errors: OSError."""
    file = find_file()
    try:
        file.unlink()
    except FileNotFoundError:
        return None
    return file
