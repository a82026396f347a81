"""tandem: loads of the same engine share one engine.

    import tandem                       # before executorch.runtime
    from executorch.runtime import Runtime

is all that unchanged ExecuTorch code needs. ExecuTorch keeps the first backend of a name, so tandem has to come first:
`active()` tells whether it did, `require()` raises if not. `Runtime`, `Program` and `Method` are a runtime of tandem's
own, with the same names, that needs no torch and runs several methods at once. `options`, `set_option`, `stats` and
`on_log` concern loads through either.
"""

from __future__ import annotations

import atexit
import os
import warnings

from tandem import _libraries

try:
    _libraries.open_executorch()
except ImportError as error:
    from tandem import __main__ as command

    if command.is_running():
        command.answer_without_executorch(str(error))
    raise
os.environ["TANDEM_REGISTER_SILENTLY"] = "1"  # the warning below is for Python
try:
    from tandem._native import ffi, lib
finally:
    del os.environ["TANDEM_REGISTER_SILENTLY"]

from tandem._cuda import DeviceArray, Event
from tandem.errors import (
    BadOptionError,
    BadProgramError,
    DeviceError,
    DeviceLostError,
    Error,
    InternalError,
    InvalidArgumentError,
    InvalidStateError,
    MissingDataError,
    NotFoundError,
    OutOfMemoryError,
    UnavailableError,
    UnsupportedError,
    check,
)
from tandem.log import LogLevel, on_log
from tandem.options import encode as _encode
from tandem.options import get_option, options, set_option
from tandem.runtime import (
    BackendRegistry,
    Method,
    MethodMeta,
    OperatorRegistry,
    Program,
    Runtime,
    TensorInfo,
    Verification,
)
from tandem.stats import LoadInfo, Stats, stats

__all__ = [
    "BackendRegistry",
    "BadOptionError",
    "BadProgramError",
    "DeviceArray",
    "DeviceError",
    "DeviceLostError",
    "Error",
    "Event",
    "InternalError",
    "InvalidArgumentError",
    "InvalidStateError",
    "LoadInfo",
    "LogLevel",
    "Method",
    "MethodMeta",
    "MissingDataError",
    "NotFoundError",
    "OperatorRegistry",
    "OutOfMemoryError",
    "Program",
    "Runtime",
    "Stats",
    "TensorInfo",
    "UnavailableError",
    "UnsupportedError",
    "Verification",
    "active",
    "get_option",
    "on_log",
    "options",
    "require",
    "set_option",
    "stats",
]

__version__: str = ffi.string(lib.tandem_version()).decode()


def _backends() -> list[str]:
    return [ffi.string(lib.tandem_vendor_backend(index)).decode() for index in range(lib.tandem_vendor_count())]


def active(backend: str | None = None) -> bool:
    """True when ExecuTorch gives the loads of `backend` ("OpenvinoBackend"), or of each of tandem's, to tandem."""
    return all(
        lib.tandem_executorch_active(_encode(name, "backend"))
        for name in (_backends() if backend is None else [backend])
    )


def require(backend: str | None = None) -> None:
    """Raises InvalidStateError, with what to move, unless `active(backend)`."""
    error = ffi.new("struct tandem_error *")
    if backend is not None and backend not in _backends():
        raise NotFoundError(f"{backend!r} is no backend of tandem; these are: {', '.join(_backends())}")
    if not active(backend):
        check(lib.tandem_executorch_register(error), error)


atexit.register(lib.tandem_gate_close)
os.register_at_fork(after_in_child=lib.tandem_gate_forget)

_late = ffi.new("struct tandem_error *")
if not active() and lib.tandem_executorch_register(_late) != lib.TANDEM_OK:
    warnings.warn(f"tandem: {ffi.string(_late.message).decode()}", RuntimeWarning, stacklevel=2)
