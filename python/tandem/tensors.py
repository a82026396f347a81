"""Arrays of Python as tensors of C: `struct tandem_tensor` filled without a copy where the layout allows it.

An input is a NumPy array, a scalar for an input of rank 0, or anything with `__dlpack__`. A method keeps one slot for
each of its inputs and outputs, whose C struct is filled anew by every run under the method's lock; shapes are written
only when they change. C reads inputs in place and wants them contiguous and aligned: an array that is not (a slice, a
transpose, a negative or zero stride, another byte order) is copied here, so it gives the same numbers.
"""

from __future__ import annotations

import ctypes
import math
import sys
from typing import TYPE_CHECKING, Any

import ml_dtypes
import numpy as np

from tandem import _cuda, errors
from tandem._native import ffi, lib

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    Array = npt.NDArray[Any]

# By the number of the C interface, which is ExecuTorch's ScalarType.
DTYPES: dict[int, np.dtype[Any]] = {
    lib.TANDEM_UINT8: np.dtype(np.uint8),
    lib.TANDEM_INT8: np.dtype(np.int8),
    lib.TANDEM_INT16: np.dtype(np.int16),
    lib.TANDEM_INT32: np.dtype(np.int32),
    lib.TANDEM_INT64: np.dtype(np.int64),
    lib.TANDEM_FLOAT16: np.dtype(np.float16),
    lib.TANDEM_FLOAT32: np.dtype(np.float32),
    lib.TANDEM_FLOAT64: np.dtype(np.float64),
    lib.TANDEM_BOOL: np.dtype(np.bool_),
    lib.TANDEM_BFLOAT16: np.dtype(ml_dtypes.bfloat16),
    lib.TANDEM_FLOAT8_E5M2: np.dtype(ml_dtypes.float8_e5m2),
    lib.TANDEM_FLOAT8_E4M3FN: np.dtype(ml_dtypes.float8_e4m3fn),
    lib.TANDEM_UINT16: np.dtype(np.uint16),
    lib.TANDEM_UINT32: np.dtype(np.uint32),
    lib.TANDEM_UINT64: np.dtype(np.uint64),
}
_KNOWN = frozenset(DTYPES.values())

# DLPack's (code, bits) of each. It has no name of its own for a tensor's element: dlpack.h lists the codes.
_DLPACK = {
    (0, 8): "int8", (0, 16): "int16", (0, 32): "int32", (0, 64): "int64",
    (1, 8): "uint8", (1, 16): "uint16", (1, 32): "uint32", (1, 64): "uint64",
    (2, 16): "float16", (2, 32): "float32", (2, 64): "float64",
    (4, 16): "bfloat16", (6, 8): "bool", (10, 8): "float8_e4m3fn", (12, 8): "float8_e5m2",
}  # fmt: skip
_TO_DLPACK = {name: pair for pair, name in _DLPACK.items()}
_BY_NAME = {dtype.name: dtype for dtype in DTYPES.values()}
_CPU, _CUDA, _CUDA_HOST, _CUDA_MANAGED = 1, 2, 3, 13
_READ_ONLY = 1  # a flag of versioned DLPack

_READY = 0x001 | 0x100  # flags of an array that C can read in place: C_CONTIGUOUS, ALIGNED

_cast, _from_buffer = ffi.cast, ffi.from_buffer

_is_capsule = ctypes.pythonapi.PyCapsule_IsValid
_is_capsule.argtypes, _is_capsule.restype = (ctypes.py_object, ctypes.c_char_p), ctypes.c_int
_get_pointer = ctypes.pythonapi.PyCapsule_GetPointer
_get_pointer.argtypes, _get_pointer.restype = (ctypes.py_object, ctypes.c_char_p), ctypes.c_void_p


def dtype_of(number: int) -> np.dtype[Any]:
    """The NumPy dtype of an element type of the C interface."""
    found = DTYPES.get(number)
    if found is None:
        raise errors.UnsupportedError(f"element type {number} is unknown to tandem: expected one of {sorted(DTYPES)}")
    return found


def open_capsule(value: Any, what: str, **request: object) -> tuple[object, ffi.CData, bool]:
    """Asks `value` for a DLPack capsule: the capsule, its `struct dl_tensor`, whether it may be written.

    The capsule is not consumed: it frees what it holds when it is dropped, which must not be before the last use.
    """
    is_negated: Any = getattr(value, "is_neg", None)  # torch hands out the memory as it is, with the other sign
    if callable(is_negated) and is_negated():
        raise errors.InvalidArgumentError(f"{what} is a view that turns the sign of its memory: use resolve_neg()")
    try:
        capsule = value.__dlpack__(**request)
    except (BufferError, TypeError):  # read-only arrays of NumPy and others go out versioned only
        try:
            capsule = value.__dlpack__(max_version=(1, 0), **request)
        except Exception as error:
            raise errors.InvalidArgumentError(f"{what} refuses DLPack: {error}") from error
    except Exception as error:
        raise errors.InvalidArgumentError(f"{what} refuses DLPack: {error}") from error
    if _is_capsule(capsule, b"dltensor"):
        tensor, writable = ffi.cast("struct dl_managed *", _get_pointer(capsule, b"dltensor")).tensor, True
    elif _is_capsule(capsule, b"dltensor_versioned"):
        versioned = ffi.cast("struct dl_versioned *", _get_pointer(capsule, b"dltensor_versioned"))
        if versioned.major != 1:
            raise errors.InvalidArgumentError(f"{what} speaks DLPack {versioned.major}: expected version 1")
        tensor, writable = versioned.tensor, not versioned.flags & _READ_ONLY
    else:
        raise errors.InvalidArgumentError(f"{what}: its __dlpack__ returned no capsule that can be read")
    _check_capsule(tensor, what)
    return capsule, tensor, writable


def _check_capsule(tensor: ffi.CData, what: str) -> None:
    """Refuses what describes no memory: reading by it would end the process, or give what lies there by chance."""
    if not 0 <= tensor.rank <= lib.TANDEM_MAX_RANK:
        found = f"rank {tensor.rank}: expected at most {lib.TANDEM_MAX_RANK}"
        raise errors.InvalidArgumentError(f"{what}: DLPack describes a tensor of {found}")
    if tensor.rank and not tensor.shape:
        raise errors.InvalidArgumentError(f"{what}: DLPack describes a tensor of rank {tensor.rank} without a shape")
    shape = tuple(tensor.shape[0 : tensor.rank]) if tensor.rank else ()
    strides = tuple(tensor.strides[0 : tensor.rank]) if tensor.rank and tensor.strides else ()
    reach = math.prod(size or 1 for size in shape)
    if strides:
        reach = max(reach, 1 + sum(abs((size - 1) * stride) for size, stride in zip(shape, strides, strict=True)))
    if min(shape, default=0) < 0 or reach * tensor.bits * tensor.lanes > 8 * sys.maxsize:
        layout = f"shape {shape} and strides {strides}" if strides else f"shape {shape}"
        raise errors.InvalidArgumentError(f"{what}: DLPack describes a tensor of the impossible {layout}")
    if 0 not in shape and not tensor.data:
        raise errors.InvalidArgumentError(f"{what}: DLPack describes a tensor of the shape {shape} at NULL")


def dtype_of_capsule(tensor: ffi.CData, what: str) -> np.dtype[Any]:
    """The NumPy dtype of a `struct dl_tensor`."""
    name = _DLPACK.get((tensor.code, tensor.bits)) if tensor.lanes == 1 else None
    if name is None:
        found = f"DLPack type code {tensor.code}, {tensor.bits} bits, {tensor.lanes} lanes"
        raise errors.InvalidArgumentError(f"{what} has an element type unknown to tandem ({found})")
    return _BY_NAME[name]


def view_capsule(tensor: ffi.CData, capsule: object, what: str) -> Array:
    """A `struct dl_tensor` in host memory as an array that shares it, whatever its strides, and keeps its capsule."""
    dtype = dtype_of_capsule(tensor, what)
    shape = tuple(tensor.shape[0 : tensor.rank]) if tensor.rank else ()
    if 0 in shape:
        return np.empty(shape, dtype)
    if tensor.strides:
        strides = tuple(tensor.strides[0 : tensor.rank]) if tensor.rank else ()
    else:
        strides = tuple(int(np.prod(shape[d + 1 :], dtype=np.int64)) for d in range(len(shape)))
    reach = [(size - 1) * stride for size, stride in zip(shape, strides, strict=True)]
    below, above = sum(step for step in reach if step < 0), sum(step for step in reach if step > 0)
    first = ffi.cast("char *", tensor.data) + tensor.byte_offset + below * dtype.itemsize
    first = ffi.gc(first, lambda _, capsule=capsule: None)
    memory = ffi.buffer(first, (above - below + 1) * dtype.itemsize)
    in_bytes = tuple(stride * dtype.itemsize for stride in strides)
    return np.ndarray(shape, dtype, memory, -below * dtype.itemsize, in_bytes)


def _describe(value: object) -> str:
    kind = type(value)
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"


class OnDevice:
    """What a run was given on a CUDA device; lives as long as the run."""

    def __init__(self, address: int, device_id: int, capsule: object) -> None:
        self.address, self.device_id, self.capsule = address, device_id, capsule


def handle_of_stream(stream: Any) -> int:
    """The CUstream of an int, or of a stream of torch, of CuPy or of `__cuda_stream__`; the default one is 1."""
    handle = stream
    protocol: Any = getattr(stream, "__cuda_stream__", None)
    if protocol is not None:
        told: Any = protocol() if callable(protocol) else protocol
        handle = told[1]
    for name in ("cuda_stream", "ptr"):
        handle = getattr(handle, name, handle)
    if not isinstance(handle, int) or handle < 0:
        raise TypeError(f"stream is of type {_describe(stream)}: expected a CUDA stream or its handle")
    return handle or _cuda.LEGACY_STREAM


class Slot:
    """One input or output of a method and the C struct that stands for it."""

    def __init__(self, kind: str, io: ffi.CData, tensor: ffi.CData) -> None:
        self.name = ffi.string(io.name).decode(errors="replace")
        self.dtype = dtype_of(io.dtype)
        self.rank: int = io.rank
        low, high = tuple(io.min[0 : io.rank]), tuple(io.max[0 : io.rank])
        self.fixed: tuple[int, ...] | None = low if low == high else None  # the shape, when only one is possible
        self.what = f'{kind} "{self.name}"'
        self.device_id: int | None = None  # of the CUDA device whose memory is read and written in place
        self._tensor = tensor
        self._shape: tuple[int, ...] | None = None  # what the struct says
        self._torch_dtype: Any = None  # `dtype` in torch; None while torch was not met
        tensor.dtype = io.dtype

    def set_shape(self, shape: tuple[int, ...]) -> None:
        if len(shape) > lib.TANDEM_MAX_RANK:
            raise errors.InvalidArgumentError(
                f"{self.what} has rank {len(shape)}: expected {self.rank}, at most {lib.TANDEM_MAX_RANK}"
            )
        tensor = self._tensor
        tensor.rank = len(shape)
        for dimension, size in enumerate(shape):
            tensor.shape[dimension] = size
        self._shape = shape

    def set_device_tensor(self, source: ffi.CData, capsule: object, keep: list[object]) -> None:
        """Lets the struct point to a `struct dl_tensor` in a CUDA device's memory, which is never copied."""
        dtype = dtype_of_capsule(source, self.what)
        if dtype != self.dtype:
            raise self.wrong_type(str(dtype))
        shape = tuple(source.shape[0 : source.rank]) if source.rank else ()
        if source.strides and shape and 0 not in shape:
            expected = 1
            for size, stride in zip(reversed(shape), reversed(tuple(source.strides[0 : source.rank])), strict=True):
                if size != 1 and stride != expected:
                    raise errors.InvalidArgumentError(f"{self.what} is not contiguous on its device: copy it first")
                expected *= size
        if shape != self._shape:
            self.set_shape(shape)
        tensor = self._tensor
        tensor.data = ffi.cast("char *", source.data) + source.byte_offset
        tensor.size = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
        keep.append(OnDevice(int(ffi.cast("uintptr_t", tensor.data)), source.device_id, capsule))

    def open_device_tensor(self, value: Any, stream: int | None, keep: list[object]) -> tuple[bool, bool]:
        """Binds `value` if it lies on a CUDA device: whether it did, and whether it may be written."""
        if self.device_id is None or not hasattr(value, "__dlpack_device__"):
            return False, False
        if value.__dlpack_device__()[0] not in (_CUDA, _CUDA_MANAGED):
            return False, False
        # Never left out: torch then orders nothing, where the array standard means the legacy stream.
        ordered = _cuda.LEGACY_STREAM if stream is None else stream
        capsule, source, writable = open_capsule(value, self.what, stream=ordered)
        self.set_device_tensor(source, capsule, keep)
        return True, writable

    def refuse_mask(self, value: object) -> None:
        if isinstance(value, np.ma.MaskedArray):
            raise errors.InvalidArgumentError(f"{self.what} is a masked array, whose mask would be lost: fill it")

    def wrong_type(self, found: str) -> errors.InvalidArgumentError:
        return errors.InvalidArgumentError(f"{self.what} is {found}: expected {self.dtype}")


class Input(Slot):
    """One input."""

    def bind(self, value: Any, keep: list[object], stream: int | None = None) -> None:
        """Lets the struct point to `value`; what must live until the run is over is added to `keep`."""
        if self.device_id is not None and self.open_device_tensor(value, stream, keep)[0]:
            return
        if type(value) is not np.ndarray or value.dtype is not self.dtype or value.flags.num & _READY != _READY:
            if self._bind_torch(value, keep):
                return
            value = self._make_ready(value)
        if value.shape != self._shape:
            self.set_shape(value.shape)
        tensor = self._tensor
        tensor.data = pointer = _from_buffer(value)
        tensor.size = value.nbytes
        keep.append(pointer)

    def _bind_torch(self, value: Any, keep: list[object]) -> bool:
        """Binds a tensor of torch that C can read in place: whether it is one. DLPack costs several times as much."""
        torch = sys.modules.get("torch")
        if torch is None or type(value) is not getattr(torch, "Tensor", None):
            return False
        if self._torch_dtype is None:
            self._torch_dtype = getattr(torch, self.dtype.name, ...)
        try:
            if (
                value.dtype is not self._torch_dtype
                or not value.is_cpu
                or value.requires_grad
                or value.is_neg()
                or not value.is_contiguous()
            ):
                return False
            address, shape = value.data_ptr(), value.shape
        except RuntimeError:  # it has no memory of its own: it is sparse, or stands for others
            return False
        if not address or address % self.dtype.alignment:
            return False
        if shape != self._shape:
            self.set_shape(tuple(shape))
        tensor = self._tensor
        tensor.data = _cast("void *", address)
        tensor.size = value.nbytes
        keep.append(value)
        return True

    def _make_ready(self, value: Any) -> Array:
        """An array of the input's type that C can read in place: `value` itself, a view of it, or a copy."""
        array = self._find_array(value)
        if array.dtype != self.dtype:
            native = array.dtype.newbyteorder("=")
            if native != self.dtype:
                raise self.wrong_type(str(array.dtype))
            array = array.astype(native)
        if array.flags.num & _READY != _READY:
            array = np.array(array, order="C", copy=True)
        return array

    def _find_array(self, value: Any) -> Array:
        if isinstance(value, (np.ndarray, np.generic)):
            self.refuse_mask(value)
            return np.asarray(value)
        if isinstance(value, (bool, int, float)):
            return self._make_scalar(value)
        if hasattr(value, "__dlpack__"):
            capsule, tensor, _ = open_capsule(value, self.what)
            if tensor.device_type not in (_CPU, _CUDA_HOST):
                raise errors.UnsupportedError(
                    f"{self.what} is on a device of DLPack's type {tensor.device_type}: this method takes host memory"
                )
            return view_capsule(tensor, capsule, self.what)
        if hasattr(value, "__array__") or hasattr(value, "__array_interface__"):
            return np.asarray(value)
        raise TypeError(
            f"{self.what} is of type {_describe(value)}: expected a NumPy array or anything with __dlpack__"
        )

    def _make_scalar(self, value: float) -> Array:
        """bool fits bool, int fits integers and floats, float fits floats; rank 0 only."""
        kinds = "b" if isinstance(value, bool) else "iufV" if isinstance(value, int) else "fV"
        if self.rank != 0 or self.dtype.kind not in kinds:
            raise errors.InvalidArgumentError(
                f"{self.what} is the {_describe(value)} {value}: expected an array of {self.dtype} of rank {self.rank}"
            )
        try:
            return np.array(value, self.dtype)
        except OverflowError as error:
            raise errors.InvalidArgumentError(f"{self.what}: {value} does not fit {self.dtype}") from error


class Output(Slot):
    """One output."""

    def bind(self, out: Any, keep: list[object], stream: int | None = None, on_device: bool = False) -> Any:
        """Lets the struct point to where the result goes: `out`, or fresh memory when the shape is known.

        None: C lends its own memory, since the shape is known only after the run.
        """
        tensor = self._tensor
        if out is not None:
            if self.device_id is not None:
                bound, writable = self.open_device_tensor(out, stream, keep)
                if bound:
                    return self._check_device_room(out, writable)
            array = self._find_room(out)
        elif on_device:
            return self._make_device_room()
        elif self.fixed is not None:
            array = np.empty(self.fixed, self.dtype)
        else:
            tensor.data = ffi.NULL
            tensor.size = 0
            return None
        if array.shape != self._shape:
            self.set_shape(array.shape)
        tensor.data = pointer = _from_buffer(array)
        tensor.size = array.nbytes
        keep.append(pointer)
        return array

    def _check_device_room(self, out: Any, writable: bool) -> Any:
        if not writable:
            raise errors.InvalidArgumentError(f"{self.what}: out is read-only: expected memory that can be written")
        if self._shape != self.fixed:
            expected = self.fixed or "an output of fixed shape, which this is not"
            raise errors.InvalidArgumentError(f"{self.what}: out has the shape {self._shape}: expected {expected}")
        return out

    def _make_device_room(self) -> _cuda.DeviceArray:
        if self.device_id is None or self.fixed is None:
            reason = "its engine is on no CUDA device" if self.device_id is None else "its shape is dynamic"
            raise errors.UnsupportedError(f"{self.what} cannot be left on a CUDA device: {reason}")
        array = _cuda.DeviceArray(self.fixed, self.dtype, _TO_DLPACK[self.dtype.name], self.device_id)
        if self.fixed != self._shape:
            self.set_shape(self.fixed)
        self._tensor.data = ffi.cast("void *", array.address)
        self._tensor.size = array.nbytes
        return array

    def take(self, array: Any, out: Any) -> Any:
        """The result after a run: `array`, its part that was written, or a copy of what C lends."""
        if self.fixed is not None:
            return array if out is None else out
        tensor = self._tensor
        shape = tuple(tensor.shape[0 : tensor.rank]) if tensor.rank else ()
        self._shape = shape
        if array is None:
            array = np.empty(shape, self.dtype)
            ffi.memmove(_from_buffer(array), tensor.data, tensor.size)
            return array
        if array.shape == shape:
            return out
        return array.reshape(-1)[: int(np.prod(shape, dtype=np.int64))].reshape(shape)

    def _find_room(self, out: Any) -> Array:
        """`out` as an array to be written in place; it never is copied."""
        writable = True
        if isinstance(out, np.ndarray):
            self.refuse_mask(out)
            array, writable = np.asarray(out), out.flags.writeable
        elif hasattr(out, "__dlpack__"):
            capsule, tensor, writable = open_capsule(out, self.what)
            if tensor.device_type not in (_CPU, _CUDA_HOST):
                raise errors.UnsupportedError(
                    f"{self.what}: out is in memory of DLPack's device type {tensor.device_type}: expected host memory"
                )
            array = view_capsule(tensor, capsule, self.what)
        else:
            raise TypeError(
                f"{self.what}: out is of type {_describe(out)}: expected a NumPy array or anything with __dlpack__"
            )
        if array.dtype != self.dtype:
            raise errors.InvalidArgumentError(f"{self.what}: out is {array.dtype}: expected {self.dtype}")
        if not writable or array.flags.num & _READY != _READY:
            reason = "read-only" if not writable else "not contiguous and aligned"
            raise errors.InvalidArgumentError(f"{self.what}: out is {reason}: expected an array that can be written")
        if self.fixed is not None and array.shape != self.fixed:
            raise errors.InvalidArgumentError(f"{self.what}: out has the shape {array.shape}: expected {self.fixed}")
        return array


def make_slots(kind: type[Input] | type[Output], ios: ffi.CData, tensors: ffi.CData, count: int) -> Sequence[Any]:
    """A slot for each of `count` inputs or outputs."""
    name = kind.__name__.lower()
    return [kind(name, ffi.addressof(ios, i), ffi.addressof(tensors, i)) for i in range(count)]
