"""Options of loads: for a task (`options`), for the process (`set_option`), and what counts now (`get_option`).

docs/options.md lists the options and tells which source of a value wins. `options` belongs to the running task or
thread, not to the system's thread: it is a context variable, read when a load is made. A scope of the C side held open
between `__enter__` and `__exit__` would leak from one asyncio task into another; so a scope lives for one load, from
the begin of tandem's load hooks to their end. Thread rule: everything here may be called from any thread.
"""

from __future__ import annotations

import contextvars
import functools
import inspect
from typing import TYPE_CHECKING, Any, TypeVar, cast

from tandem import errors
from tandem._native import ffi, lib

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from types import TracebackType

Value = bool | int | str
Function = TypeVar("Function", bound="Callable[..., Any]")

_OPTION_SIZE = 256  # bytes of a value with its NUL


def spell(name: str, value: Value) -> tuple[bytes, bytes]:
    """An option as C takes it: key and value. Errors: BadOptionError (neither bool, int nor text; a NUL)."""
    if not isinstance(value, (bool, int, str)):
        raise errors.BadOptionError(f"option '{name}': expected bool, int or str, found {type(value).__name__}")
    text = str(value).lower() if isinstance(value, bool) else str(value)
    refused = errors.BadOptionError
    return encode(name, "an option's name", refused), encode(text, f"option {name!r}", refused)


def encode(
    text: str, what: str, refused: type[errors.Error] = errors.InvalidArgumentError, encoding: str = "utf-8"
) -> bytes:
    """Text for C, with what it cannot have refused."""
    if not isinstance(text, str):
        raise TypeError(f"{what} is of type {type(text).__name__}: expected str")
    if "\0" in text:
        raise refused(f"{what}: a NUL is in {text!r}; leave it out")
    try:
        return text.encode(encoding, "surrogateescape")
    except UnicodeEncodeError as error:
        raise refused(f"{what}: {text!r} cannot be encoded ({error.reason})") from error


class options:
    """Options for the loads made inside the `with`, by this task or thread, through any runtime.

        with tandem.options(use_shared_engines=False):
            method = program.load_method("forward")

    Names and values are checked at once. A value is a bool, an int or a text. Blocks nest, the inner one wins, and an
    object may be entered again, also by several threads. As a decorator (of a function or an `async def`) it counts
    for each call. asyncio tasks started inside inherit it, new threads do not.
    Errors: BadOptionError, which names the option.
    """

    def __init__(self, options: Mapping[str, Value] | None = None, /, **more: Value) -> None:
        pairs = [spell(name, value) for name, value in (*dict(options or {}).items(), *more.items())]
        self._texts = [(ffi.new("char[]", name), ffi.new("char[]", value)) for name, value in pairs]
        self._array = ffi.new("struct tandem_option[]", self._texts)
        lib.tandem_scope_release(self._acquire())

    def _acquire(self) -> ffi.CData:
        scope, error = ffi.new("struct tandem_scope **"), ffi.new("struct tandem_error *")
        errors.check(lib.tandem_scope_acquire(self._array, len(self._texts), scope, error), error)
        return cast("ffi.CData", scope[0])

    def __enter__(self) -> options:
        if not lib.tandem_gate_hook_loads():  # programs without options() pay nothing
            raise errors.InvalidStateError("options() is too late: the interpreter is ending")
        _active.set((*_active.get(), self))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # By identity, innermost first: blocks may be left in another order than entered (contextlib.ExitStack).
        active = _active.get()
        for index in reversed(range(len(active))):
            if active[index] is self:
                _active.set(active[:index] + active[index + 1 :])
                return

    def __call__(self, function: Function) -> Function:
        if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
            raise TypeError("options() cannot decorate a generator: its caller runs between its steps; use with inside")

        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            with self:
                return function(*args, **kwargs)

        @functools.wraps(function)
        async def await_call(*args: Any, **kwargs: Any) -> Any:
            with self:
                return await function(*args, **kwargs)

        return cast("Function", await_call if inspect.iscoroutinefunction(function) else call)


_active: contextvars.ContextVar[tuple[options, ...]] = contextvars.ContextVar("tandem.options", default=())
_open: dict[ffi.CData, list[ffi.CData]] = {}  # scopes of the loads under way, by the token that C keeps for them


@ffi.def_extern(name="tandem_python_load_begin", error=lib.TANDEM_INTERNAL)
def _begin_load(user: ffi.CData, token: ffi.CData, error: ffi.CData) -> int:
    scopes: list[ffi.CData] = []
    scope = ffi.new("struct tandem_scope **")
    for level in _active.get():
        status: int = lib.tandem_scope_acquire(level._array, len(level._texts), scope, error)
        if status != lib.TANDEM_OK:
            _release(scopes)
            return status
        scopes.append(scope[0])
    if scopes:
        token[0] = scopes[-1]
        _open[scopes[-1]] = scopes
    return int(lib.TANDEM_OK)


@ffi.def_extern(name="tandem_python_load_end")
def _end_load(user: ffi.CData, token: ffi.CData) -> None:
    if token:
        _release(_open.pop(ffi.cast("struct tandem_scope *", token)))


def _release(scopes: list[ffi.CData]) -> None:
    for scope in reversed(scopes):
        lib.tandem_scope_release(scope)


def set_option(name: str, value: Value | None, backend: str | None = None) -> None:
    """Sets an option for the process's later loads; `None` takes the setting back.

    `backend` (a backend id or vendor name) restricts it to that backend. Errors: BadOptionError, NotFoundError.
    """
    key, text = spell(name, "" if value is None else value)
    error = ffi.new("struct tandem_error *")
    chosen = ffi.NULL if backend is None else encode(backend, "backend")
    errors.check(lib.tandem_set_option(chosen, key, ffi.NULL if value is None else text, error), error)


def get_option(name: str, backend: str | None = None) -> Value:
    """What a load of `backend` made now, here, without options of its own and compile specs, would use.

    true and false come as bool, digits as int, all else as text. An option of one backend only needs `backend`.
    Errors: BadOptionError, NotFoundError.
    """
    key, _ = spell(name, "")
    value, error = ffi.new("char[]", _OPTION_SIZE), ffi.new("struct tandem_error *")
    chosen = ffi.NULL if backend is None else encode(backend, "backend")
    errors.check(lib.tandem_get_option(chosen, key, value, _OPTION_SIZE, error), error)
    text = ffi.string(value).decode("utf-8", "surrogateescape")
    if text in ("true", "false"):
        return text == "true"
    return int(text) if text.isascii() and text.isdigit() else text
