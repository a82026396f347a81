"""CUDA's driver for what concerns Python's arrays: the order of work, and memory for outputs on a device.

The driver is the one that the vendors use: TANDEM_CUDA_LIBRARY, else libcuda.so.1. A call leaves the thread's current
context and its capture mode as they were.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import os
import weakref
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from tandem import errors
from tandem._native import ffi, lib

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import numpy.typing as npt

LEGACY_STREAM = 1  # CU_STREAM_LEGACY: what producers order their work before unless they are told a stream

_OUT_OF_MEMORY = 2
_NOT_READY = 600
_DISABLE_TIMING = 2  # CU_EVENT_DISABLE_TIMING
_CONTEXT_OF_POINTER = 1  # CU_POINTER_ATTRIBUTE_CONTEXT
_RELAXED = 2  # CU_STREAM_CAPTURE_MODE_RELAXED
_NAMES = (
    "cuInit", "cuGetErrorName", "cuDeviceGet", "cuDevicePrimaryCtxRetain", "cuCtxPushCurrent_v2", "cuCtxPopCurrent_v2",
    "cuThreadExchangeStreamCaptureMode", "cuPointerGetAttribute", "cuStreamSynchronize", "cuMemAlloc_v2",
    "cuMemFree_v2", "cuMemcpyDtoH_v2", "cuStreamGetCtx", "cuStreamWaitEvent", "cuEventCreate", "cuEventRecord",
    "cuEventQuery", "cuEventSynchronize", "cuEventDestroy_v2",
)  # fmt: skip

_new_capsule = ctypes.pythonapi.PyCapsule_New
_new_capsule.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p)
_new_capsule.restype = ctypes.py_object


@functools.cache
def _driver() -> dict[str, Any]:
    name = os.environ.get("TANDEM_CUDA_LIBRARY") or "libcuda.so.1"
    try:
        library = ctypes.CDLL(name)
        driver = {each: getattr(library, each) for each in _NAMES}
    except (OSError, AttributeError) as error:
        reason = f"CUDA's driver {name} cannot be used: {error}; install NVIDIA's driver"
        raise errors.UnavailableError(reason) from error
    status = driver["cuInit"](0)
    if status:
        raise errors.UnavailableError(f"CUDA's driver {name} does not start: cuInit returns {status}")
    return driver


def _call(name: str, *arguments: object) -> None:
    driver = _driver()
    status = driver[name](*arguments)
    if status:
        text = ctypes.c_char_p()
        driver["cuGetErrorName"](status, ctypes.byref(text))
        kind = errors.OutOfMemoryError if status == _OUT_OF_MEMORY else errors.DeviceError
        raise kind(f"{name} returns {(text.value or b'?').decode()} ({status})")


@contextlib.contextmanager
def _current(context: ctypes.c_void_p) -> Iterator[None]:
    _call("cuCtxPushCurrent_v2", context)
    mode = ctypes.c_int(_RELAXED)
    _call("cuThreadExchangeStreamCaptureMode", ctypes.byref(mode))
    try:
        yield
    finally:
        _driver()["cuThreadExchangeStreamCaptureMode"](ctypes.byref(mode))
        _driver()["cuCtxPopCurrent_v2"](ctypes.byref(ctypes.c_void_p()))


@functools.cache
def _primary_context(device_id: int) -> ctypes.c_void_p:
    """Retained for the life of the process, as other libraries' memory keeps it anyway."""
    device, context = ctypes.c_int(), ctypes.c_void_p()
    _call("cuDeviceGet", ctypes.byref(device), device_id)
    _call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
    return context


def _address(pointer: ffi.CData) -> int:
    return int(ffi.cast("uintptr_t", pointer))


def wait_for_producer(address: int, device_id: int) -> None:
    """Waits until all is done that producers ordered before the legacy stream of the context of `address`."""
    context = ctypes.c_void_p()
    _call("cuPointerGetAttribute", ctypes.byref(context), _CONTEXT_OF_POINTER, ctypes.c_uint64(address))
    with _current(context if context.value else _primary_context(device_id)):
        _call("cuStreamSynchronize", ctypes.c_void_p(LEGACY_STREAM))


class Event:
    """The end of one run that returned early. Made by `Method.execute(..., return_early=True)`.

    Until then tandem keeps the run's inputs and outputs, whoever else drops them. Thread rule: everything here may be
    called from any thread, also when the method is gone. Errors: DeviceError (the run failed on the device),
    DeviceLostError (after a fork).
    """

    def __init__(self, stream: int, device_id: int) -> None:
        self._process = os.getpid()
        self._kept: object = None  # inputs and outputs
        self._stream = ctypes.c_void_p(stream)
        self._context = _primary_context(device_id)
        event, context = ctypes.c_void_p(), ctypes.c_void_p()
        with _current(self._context):
            _call("cuStreamGetCtx", self._stream, ctypes.byref(context))
        self._context = context
        with _current(self._context):
            _call("cuEventCreate", ctypes.byref(event), _DISABLE_TIMING)
        self._event = event
        weakref.finalize(self, _destroy_event, event, self._process).atexit = False

    @property
    def handle(self) -> int:
        """The CUevent, for other libraries; valid as long as this is there."""
        return self._event.value or 0

    def wait(self) -> None:
        """Returns when the run is over and its outputs are written. Blocks without the interpreter lock."""
        self._refuse_child()
        with _current(self._context):
            _call("cuEventSynchronize", self._event)
        self._kept = None

    def query(self) -> bool:
        """True when the run is over. Never blocks."""
        self._refuse_child()
        with _current(self._context):
            if _driver()["cuEventQuery"](self._event) == _NOT_READY:
                return False
            _call("cuEventQuery", self._event)
        self._kept = None
        return True

    def record(self, kept: object) -> None:
        """Stands for the end of what its stream has to do already; `kept` lives until then."""
        self._kept = kept
        with _current(self._context):
            try:
                _call("cuEventRecord", self._event, self._stream)
            except errors.Error:
                _call("cuStreamSynchronize", self._stream)
                raise

    def order_before(self, stream: int | None, context: ctypes.c_void_p) -> None:
        """What `stream` (None: the legacy one of `context`) is given from now on comes after the run."""
        self._refuse_child()
        with _current(context):
            _call("cuStreamWaitEvent", ctypes.c_void_p(stream or LEGACY_STREAM), self._event, 0)

    def _refuse_child(self) -> None:
        if self._process != os.getpid():
            raise errors.DeviceLostError("the run was begun before this process was forked: run anew here")

    def __repr__(self) -> str:
        return f"<tandem.Event {self.handle:#x}>"


def _destroy_event(event: ctypes.c_void_p, process: int) -> None:
    if process == os.getpid():
        _driver()["cuEventDestroy_v2"](event)


class DeviceArray:
    """An output in a CUDA device's memory, contiguous; `torch.from_dlpack` and CuPy's take it without a copy.

    The memory is freed when this and every tensor that was made of it is gone. `ready` is the end of the run that
    writes it, where that returned early.
    """

    def __init__(
        self, shape: Sequence[int], dtype: np.dtype[Any], dlpack_type: tuple[int, int], device_id: int
    ) -> None:
        self.shape, self.dtype, self.device_id = tuple(shape), dtype, device_id
        self.nbytes = int(np.prod(self.shape, dtype=np.int64)) * dtype.itemsize
        self._dlpack_type = dlpack_type
        self._context = _primary_context(device_id)
        address = ctypes.c_uint64()
        with _current(self._context):
            _call("cuMemAlloc_v2", ctypes.byref(address), ctypes.c_size_t(max(self.nbytes, 1)))
        self.address: int = address.value
        names = ("cuCtxPushCurrent_v2", "cuCtxPopCurrent_v2", "cuThreadExchangeStreamCaptureMode", "cuMemFree_v2")
        functions = [ffi.cast("void *", ctypes.cast(_driver()[name], ctypes.c_void_p).value) for name in names]
        context = ffi.cast("void *", self._context.value)
        memory = lib.tandem_dlpack_hold(address.value, context, *functions)
        if not memory:
            raise MemoryError("no memory to hold a device's memory")
        self._memory = ffi.gc(memory, lib.tandem_dlpack_drop)
        self.ready: Event | None = None

    def numpy(self) -> npt.NDArray[Any]:
        """A copy in host memory, of what is there when the run is over."""
        if self.ready is not None:
            self.ready.wait()
        array = np.empty(self.shape, self.dtype)
        if self.nbytes:
            with _current(self._context):
                target = ctypes.c_void_p(array.ctypes.data)
                _call("cuMemcpyDtoH_v2", target, ctypes.c_uint64(self.address), ctypes.c_size_t(self.nbytes))
        return array

    def __dlpack__(self, **request: object) -> object:
        """A run that returned early is waited for by the consumer's stream; others are over."""
        if request.get("copy"):
            raise BufferError("a tandem.DeviceArray is handed over without a copy: copy what comes of it")
        if self.ready is not None and request.get("stream") != -1:
            self.ready.order_before(cast("int | None", request.get("stream")), self._context)
        code, bits = self._dlpack_type
        shape = ffi.new("int64_t[]", self.shape)
        managed = lib.tandem_dlpack_export(self._memory, self.device_id, code, bits, len(self.shape), shape)
        if not managed:
            raise MemoryError("no memory to describe a tensor")
        return _new_capsule(*map(_address, (managed, lib.tandem_dlpack_name(), lib.tandem_dlpack_destructor())))

    def __dlpack_device__(self) -> tuple[int, int]:
        return 2, self.device_id  # kDLCUDA

    def __repr__(self) -> str:
        return f"<tandem.DeviceArray {self.dtype} {self.shape} on cuda:{self.device_id}>"
