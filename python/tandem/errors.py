"""The exceptions of tandem: one class for each status of the C library.

Each says what its caller can do about it. The message is the whole reason, in one line: what, where, expected, found.
`status` is the C status's name. Which class belongs to which status is the library's own table, TANDEM_STATUS_TABLE.
"""

from __future__ import annotations

from tandem._native import ffi, lib


class Error(RuntimeError):
    """Base of every exception that tandem raises about a program, a run or an option."""

    status = "UNKNOWN"


class InvalidArgumentError(Error, ValueError):
    """An argument is wrong: a count, rank, type, layout, shape or path; the tensor is named."""


class BadOptionError(Error, ValueError):
    """The name or the value of an option is wrong; no option of the call was applied."""


class BadProgramError(Error):
    """The program's bytes are damaged, or are no program."""


class UnsupportedError(Error):
    """The program is sound, but this version, device or build cannot run it."""


class NotFoundError(Error):
    """There is no such file, method, backend or operator."""


class MissingDataError(Error):
    """The program needs data outside of it: give the .ptd file as data_path."""


class UnavailableError(Error):
    """The library of a vendor is missing or does not start; the message tells what to install."""


class OutOfMemoryError(Error, MemoryError):
    """Memory of the host or of the device ran out. What was loaded before goes on working."""


class DeviceError(Error):
    """The device failed at one call. Trying again may help."""


class DeviceLostError(Error):
    """The device, or what was loaded on it, is gone for this process: also after a fork."""


class InvalidStateError(Error):
    """Not in this state: the object is closed, or a name is taken."""


class InternalError(Error):
    """A fault of tandem, of ExecuTorch or of a vendor's library."""


def _read_classes() -> dict[int, type[Error]]:
    classes: dict[int, type[Error]] = {}
    for number, name in enumerate(lib.tandem_python_classes):
        if number != lib.TANDEM_OK:
            found: type[Error] = globals()[ffi.string(name).decode()]
            found.status = ffi.string(lib.tandem_status_name(number)).decode()
            classes[number] = found
    return classes


_CLASSES = _read_classes()


def check(status: int, error: ffi.CData | None = None) -> None:
    """Raises what a C call that returned `status` just now on this thread failed with; `error` is what it filled."""
    if status != lib.TANDEM_OK:
        raise _CLASSES.get(status, Error)(_read_reason(error))


def _read_reason(error: ffi.CData | None) -> str:
    """The thread's last reason is whole; the error's message may be cut, but is sure to be of this call."""
    size = lib.tandem_last_reason(ffi.NULL, 0) + 1
    whole = ffi.new("char[]", size)
    lib.tandem_last_reason(whole, size)
    reason = ffi.string(whole).decode(errors="replace")
    cut = ffi.string(error.message).decode(errors="replace") if error is not None else ""
    return reason if reason.startswith(cut.removesuffix("...")) else cut
