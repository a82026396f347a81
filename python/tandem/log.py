"""tandem's log lines in Python: `on_log`.

A line is delivered with no lock of tandem held, on whichever thread made it, often inside a load. The function may
therefore do anything, a load included, whose own lines then come while it runs. What it raises goes to
sys.unraisablehook (cffi sees to that), never into C; Ctrl-C is put off until the call that made the line is over. How
much is said is option `log_level`.
"""

from __future__ import annotations

import enum
import threading
from typing import TYPE_CHECKING

from tandem._native import ffi, lib

if TYPE_CHECKING:
    from collections.abc import Callable


class LogLevel(enum.IntEnum):
    """How important a line is; smaller is more important. The names in small letters are option `log_level`'s."""

    ERROR = lib.TANDEM_LOG_ERROR
    WARNING = lib.TANDEM_LOG_WARNING
    INFO = lib.TANDEM_LOG_INFO
    DEBUG = lib.TANDEM_LOG_DEBUG


_function: Callable[[LogLevel, str], object] | None = None


@ffi.def_extern(name="tandem_python_log")
def _deliver(user: ffi.CData, level: int, line: ffi.CData) -> None:
    function = _function
    if function is None:
        return
    try:
        function(LogLevel(level), ffi.string(line).decode("utf-8", "replace"))
    except KeyboardInterrupt:
        if threading.current_thread() is not threading.main_thread():
            raise  # none that a signal made
        lib.tandem_gate_interrupt()


def on_log(function: Callable[[LogLevel, str], object] | None) -> None:
    """Gives tandem's log lines to `function(level, line)` instead of stderr; `None` goes back to stderr.

    `line` has no newline. The function is called from any thread and from several at once; a call that has begun may
    still be under way on another thread when this returns.
    """
    global _function
    if function is not None and not callable(function):
        raise TypeError(f"on_log takes a function or None, found {type(function).__name__}")
    if function is None:
        lib.tandem_gate_log(False)
    _function = function
    if function is not None:
        lib.tandem_gate_log(True)
