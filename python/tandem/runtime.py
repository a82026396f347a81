"""A runtime with the names and the meaning of executorch.runtime that needs no torch and runs both arms at once.

    runtime = tandem.Runtime.get()
    left, right = (runtime.load_program("policy.pte").load_method("forward") for _ in range(2))
    actions = left.execute([image, state])

It enters C without the interpreter lock: loads and runs of several threads are under way at the same time. It differs
from executorch.runtime where that hides the sharing: each `load_method` makes a load of its own (there a program
caches its methods), and inputs that are no tensors, which the program has as constants, may be left out.

Ownership: a method keeps its program's memory, so either may go first. What is dropped is freed; `close` and `with`
free sooner. Thread rule: everything may be called from any thread; two threads that run one method take turns.
Fork: programs and methods do not survive one: a child gets DeviceLostError and loads its own; nothing of its parent is
freed there. Sub-interpreters and builds without the interpreter lock are not supported.
"""

from __future__ import annotations

import collections
import enum
import functools
import io
import mmap
import os
import sys
import threading
import weakref
from typing import TYPE_CHECKING, Any, BinaryIO, Literal, NoReturn, TypeVar, Union, overload

import numpy as np

from tandem import _cuda, errors, tensors
from tandem._native import ffi, lib
from tandem.options import encode, spell
from tandem.stats import LoadInfo, load_info

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from typing_extensions import Self

    from tandem.options import Value

Path = Union[str, "os.PathLike[str]"]
Found = TypeVar("Found")

_forks = 0  # forks between the process that imported this and the one that runs


def _count_fork() -> None:
    global _forks
    _forks += 1


os.register_at_fork(after_in_child=_count_fork)


class Verification(enum.Enum):
    """As in executorch.runtime. tandem always verifies a program's structure, whichever is asked for."""

    Minimal = 0
    InternalConsistency = 1


def _make_slot(kind: str, destroy: Callable[[ffi.CData], None], keep: object) -> ffi.CData:
    """Where a C call puts what it makes. It belongs to the slot at once: an interrupt comes right after the call."""
    born = _forks

    def free(slot: ffi.CData, keep: object = keep) -> None:
        if slot[0] and _forks == born:  # a child's copy has threads and devices behind it that are not there
            destroy(slot[0])

    return ffi.gc(ffi.new(kind), free)


class _Owner:
    """Something of C's that is freed when this and every call that uses it is gone. `slot`: from `_make_slot`."""

    def __init__(self, slot: ffi.CData, what: str) -> None:
        self._handle: ffi.CData | None = ffi.gc(slot[0], lambda _, slot=slot: None)  # which keeps the slot
        self._born = _forks
        self._what = what

    def _use(self) -> ffi.CData:
        if self._born != _forks:
            raise errors.DeviceLostError(f"{self._what} was loaded before this process was forked: load it again here")
        handle = self._handle
        if handle is None:
            raise errors.InvalidStateError(f"{self._what} is closed")
        return handle

    def close(self) -> None:
        """Frees what this holds, now or when the last call that uses it returns. Closing again is fine."""
        self._handle = None

    @property
    def closed(self) -> bool:
        return self._handle is None

    def __enter__(self) -> Self:
        self._use()
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        raise TypeError(f"{self._what} belongs to this process and cannot be copied or pickled: load it again")

    def __repr__(self) -> str:
        return f"<tandem {self._what}{', closed' if self.closed else ''}>"


class TensorInfo:
    """One input, output or attribute of a method."""

    def __init__(self, io: ffi.CData) -> None:
        self._name = ffi.string(io.name).decode(errors="replace")
        self._dtype: int = io.dtype
        self._min: tuple[int, ...] = tuple(io.min[0 : io.rank])
        self._max: tuple[int, ...] = tuple(io.max[0 : io.rank])

    def name(self) -> str:
        """The program's name for it, else "input0", "output0", "attribute0" and so on."""
        return self._name

    def sizes(self) -> tuple[int, ...]:
        """The shape; of a dynamic dimension the largest size, 0 when the program has no bound."""
        return tuple(0 if size >= 2**63 - 1 else size for size in self._max)

    def bounds(self) -> tuple[tuple[int, int | None], ...]:
        """Least and largest size of each dimension; None: no bound."""
        return tuple((low, None if high >= 2**63 - 1 else high) for low, high in zip(self._min, self._max, strict=True))

    def dtype(self) -> int:
        """The number of ExecuTorch's ScalarType."""
        return self._dtype

    def numpy_dtype(self) -> np.dtype[Any]:
        """The same as a dtype of NumPy or ml_dtypes."""
        return tensors.dtype_of(self._dtype)

    def nbytes(self) -> int:
        """Bytes of a tensor of that shape."""
        count: int = lib.tandem_dtype_size(self._dtype)
        for size in self.sizes():
            count *= size
        return count

    def __repr__(self) -> str:
        name = ffi.string(lib.tandem_dtype_name(self._dtype)).decode()
        return f"TensorInfo(name={self._name!r}, sizes={self.sizes()}, dtype={name}, nbytes={self.nbytes()})"


class MethodMeta:
    """The inputs and outputs of a method that are tensors, in order, and its attributes.

    Attributes are the tensors that the program has by name: buffers that the method changes, where the exporter was
    told to write their names (`emit_mutable_buffer_names`), and what lies in a data file.
    """

    def __init__(
        self, name: str, inputs: list[TensorInfo], outputs: list[TensorInfo], attributes: list[TensorInfo]
    ) -> None:
        self._name, self._inputs, self._outputs, self._attributes = name, inputs, outputs, attributes

    def name(self) -> str:
        return self._name

    def num_inputs(self) -> int:
        return len(self._inputs)

    def num_outputs(self) -> int:
        return len(self._outputs)

    def num_attributes(self) -> int:
        return len(self._attributes)

    def input_tensor_meta(self, index: int) -> TensorInfo:
        """Errors: IndexError."""
        return self._get(self._inputs, index, "input tensor")

    def output_tensor_meta(self, index: int) -> TensorInfo:
        """Errors: IndexError."""
        return self._get(self._outputs, index, "output tensor")

    def attribute_tensor_meta(self, index: int) -> TensorInfo:
        """Errors: IndexError."""
        return self._get(self._attributes, index, "attribute")

    def _get(self, infos: list[TensorInfo], index: int, kind: str) -> TensorInfo:
        if not 0 <= index < len(infos):
            raise IndexError(f'method "{self._name}" has no {kind} {index}: it has {len(infos)}')
        return infos[index]

    def __repr__(self) -> str:
        return (
            f"MethodMeta(name={self._name!r}, inputs={self._inputs}, outputs={self._outputs}, "
            f"attributes={self._attributes})"
        )


class Method(_Owner):
    """A loaded method: one load of each of its delegates' engines. Made by `Program.load_method`."""

    def __init__(self, made: ffi.CData, flights: collections.deque[_cuda.Event], name: str, io: _Io) -> None:
        super().__init__(made, f'method "{name}"')
        # Runs that returned early, guarded by _lock. C waits for them before it frees the method, and what they use is
        # kept until then, by `made`, a slot.
        self._flights = flights
        self._metadata = io.describe(name)
        self._constants = io.constants
        self._lock = threading.RLock()  # over binding, running and reading, since all use the structs below
        # Guarded by _lock.
        self._running = False
        self._input_tensors = ffi.new("struct tandem_tensor[]", io.input_count)
        self._output_tensors = ffi.new("struct tandem_tensor[]", io.output_count)
        self._inputs: Sequence[tensors.Input] = tensors.make_slots(
            tensors.Input, io.inputs, self._input_tensors, io.input_count
        )
        self._outputs: Sequence[tensors.Output] = tensors.make_slots(
            tensors.Output, io.outputs, self._output_tensors, io.output_count
        )
        # Where the method is one delegate on a CUDA device, and nothing else, that device's memory is used in place.
        info = self.info if lib.tandem_method_direct(made[0]) else []
        self._on_cuda = bool(info) and info[0].device.startswith("cuda:")
        for slot in (*self._inputs, *self._outputs) if self._on_cuda else ():
            slot.device_id = int(info[0].device.removeprefix("cuda:"))
        self._error = ffi.new("struct tandem_error *")
        self._run = ffi.new("struct tandem_run_desc *")
        self._run.struct_size = ffi.sizeof("struct tandem_run_desc")
        self._run.inputs, self._run.input_count = self._input_tensors, io.input_count
        self._run.outputs, self._run.output_count = self._output_tensors, io.output_count

    @overload
    def execute(
        self,
        inputs: Sequence[Any] = (),
        *,
        out: Sequence[Any] | None = None,
        device: Literal["cpu", "cuda"] = "cpu",
        stream: Any = None,
        return_early: Literal[False] = False,
    ) -> list[Any]: ...

    @overload
    def execute(
        self,
        inputs: Sequence[Any] = (),
        *,
        out: Sequence[Any] | None = None,
        device: Literal["cpu", "cuda"] = "cpu",
        stream: Any,
        return_early: Literal[True],
    ) -> tuple[list[Any], _cuda.Event]: ...

    def execute(
        self,
        inputs: Sequence[Any] = (),
        *,
        out: Sequence[Any] | None = None,
        device: Literal["cpu", "cuda"] = "cpu",
        stream: Any = None,
        return_early: bool = False,
    ) -> list[Any] | tuple[list[Any], _cuda.Event]:
        """Runs the method: the outputs, as fresh NumPy arrays.

        `inputs`: an array or anything with `__dlpack__` for each input that is a tensor; a Python number will do for
        rank 0. Inputs that are no tensors are left out, all of them, or given as the program was exported with them: it
        runs with no other value. Tensors are read in place where they are contiguous, else from a copy, and must not
        change meanwhile. bfloat16 and float8 are the types of ml_dtypes.
        `out`: for each output None or what to write it into, which then is the result: a contiguous array of that
        type and shape; of a dynamic output at least as large, the result then being the part that was written.
        A method that is one engine on a CUDA device also takes contiguous CUDA tensors, in `inputs` and in `out`,
        and uses them in place. `device="cuda"` leaves outputs of fixed shape there, as `DeviceArray`. `stream`: the
        CUDA stream to run on (a handle, or a stream of torch or CuPy), after what it has to do already; without one
        the run waits for the default stream, where other libraries order their tensors' work. Either way the run is
        over when this returns.
        `return_early`: return when the run is queued on `stream`, which must be given, with its outputs and the `Event`
        that tells when they are written. Inputs must not change until then; each is kept until then, and so is the
        method's engine. Outputs of dynamic shape need `out`. What the stream is given later comes after the run. Only
        tensors on the device let it return at once: host memory is copied, which CUDA waits for.
        Blocks for the run, without the interpreter lock, and while another thread runs this method.
        Errors: InvalidArgumentError (the tensor is named), InvalidStateError (closed), DeviceLostError (after a
        fork), and what the engine's run failed with. An error leaves the method usable.
        """
        if self._born != _forks:  # before the lock, which a thread of the parent may hold for ever
            self._use()
        slots, output_slots = self._inputs, self._outputs
        for name, given in (("inputs", inputs), ("out", () if out is None else out)):
            if hasattr(given, "__dlpack__") or not hasattr(given, "__len__"):  # rows would be taken for tensors
                raise TypeError(f"{name} is one {type(given).__name__}: expected a list, with a tensor for each")
        if len(inputs) != len(slots):
            inputs = self._drop_constants(inputs)
        if out is None:
            out = (None,) * len(output_slots)
        elif len(out) != len(output_slots):
            raise errors.InvalidArgumentError(f"out has {len(out)} items: {self._what} has {len(output_slots)} outputs")
        with self._lock:
            self._refuse_reentry()
            self._running = True
            try:
                return self._execute_locked(inputs, out, device, stream, return_early)
            finally:
                self._running = False

    def _drop_constants(self, inputs: Sequence[Any]) -> list[Any]:
        names, constants = [slot.name for slot in self._inputs], self._constants
        if not constants or len(inputs) != len(names) + len(constants):
            more = f", and {len(constants)} that are none and may be left out together" if constants else ""
            raise errors.InvalidArgumentError(
                f"{len(inputs)} inputs were given: {self._what} has {len(names)} that are tensors"
                f" ({', '.join(names)}){more}"
            )
        for position, expected in constants.items():
            value = inputs[position]
            if not _is_constant(value, expected):
                found = (
                    repr(value) if isinstance(value, (bool, int, float, type(None))) else f"a {type(value).__name__}"
                )
                raise errors.InvalidArgumentError(
                    f"input {position} of {self._what} is {found}: the program was exported for"
                    + (
                        " a text or a list there; leave out all inputs that are no tensors"
                        if expected is ...
                        else f" {expected!r} there and runs with nothing else; export it again for another"
                    )
                )
        return [value for position, value in enumerate(inputs) if position not in constants]

    def _refuse_reentry(self) -> None:
        if self._running:  # on this thread: a log function that runs the method whose line it got
            raise errors.InvalidStateError(f"{self._what} is being run by this thread: its log function may not")

    def _execute_locked(
        self, inputs: Sequence[Any], out: Sequence[Any], device: str, stream: Any, return_early: bool
    ) -> list[Any] | tuple[list[Any], _cuda.Event]:
        keep: list[object] = []
        if self._handle is None:
            self._use()
        event = None
        while self._flights and self._flights[0].query():
            self._flights.popleft()
        if self._on_cuda or stream is not None or device != "cpu" or return_early:
            arrays = self._bind_on_device(inputs, out, device, stream, keep)
            if return_early:
                event = self._prepare_early(arrays, stream)
            self._run.return_early = return_early
        else:
            for slot, value in zip(self._inputs, inputs, strict=False):
                slot.bind(value, keep)
            arrays = [slot.bind(target, keep) for slot, target in zip(self._outputs, out, strict=False)]
        # In no variable: the traceback of a failure would keep it, and with it a load that is closed.
        status = lib.tandem_method_run(self._handle, self._run, self._error)
        if status:
            errors.check(status, self._error)
        if event is not None:
            kept = [each._memory if isinstance(each, _cuda.DeviceArray) else each for each in arrays]
            self._flights.append(event)
            event.record((keep, kept))
            for each in arrays:
                if isinstance(each, _cuda.DeviceArray):
                    each.ready = event
        results = zip(self._outputs, arrays, out, strict=False)
        outputs = [slot.take(array, target) for slot, array, target in results]
        return outputs if event is None else (outputs, event)

    def _bind_on_device(
        self, inputs: Sequence[Any], out: Sequence[Any], device: str, stream: Any, keep: list[object]
    ) -> list[Any]:
        if device not in ("cpu", "cuda"):
            raise errors.InvalidArgumentError(f'device is {device!r}: expected "cpu" or "cuda"')
        if not self._on_cuda:
            reason = "is not one engine on a CUDA device alone, and copies through host memory"
            raise errors.UnsupportedError(f"{self._what} {reason}: leave out stream, device and return_early")
        handle = None if stream is None else tensors.handle_of_stream(stream)
        self._run.stream = ffi.cast("void *", handle or 0)
        for slot, value in zip(self._inputs, inputs, strict=True):
            slot.bind(value, keep, handle)
        pairs = zip(self._outputs, out, strict=True)
        arrays = [slot.bind(target, keep, handle, device == "cuda") for slot, target in pairs]
        if handle is None:
            for each in keep:
                if isinstance(each, tensors.OnDevice):
                    _cuda.wait_for_producer(each.address, each.device_id)
        return arrays

    def _prepare_early(self, arrays: list[Any], stream: Any) -> _cuda.Event:
        if stream is None:
            raise errors.InvalidArgumentError("return_early needs stream: the CUDA stream that the run is queued on")
        for slot, array in zip(self._outputs, arrays, strict=True):
            if array is None:
                raise errors.InvalidArgumentError(
                    f"{slot.what} has a dynamic shape: give memory for it in out, or leave out return_early"
                )
        device_id = self._outputs[0].device_id
        assert device_id is not None  # of a method on a CUDA device
        return _cuda.Event(tensors.handle_of_stream(stream), device_id)

    def __call__(self, *inputs: Any) -> list[Any]:
        """`method(x, y)` is `method.execute([x, y])`."""
        return self.execute(inputs)

    @property
    def metadata(self) -> MethodMeta:
        return self._metadata

    def reset(self) -> None:
        """Clears the state that the engine keeps for this method between runs."""
        self._use()
        with self._lock:
            self._refuse_reentry()
            errors.check(lib.tandem_method_reset(self._use(), self._error), self._error)

    @property
    def info(self) -> list[LoadInfo]:
        """What tandem did for each of the method's delegates that it serves: shared or not, with how many, seconds."""
        handle = self._use()
        loads: list[LoadInfo] = []
        while load := lib.tandem_method_load(handle, len(loads)):
            loads.append(load_info(load))
        return loads

    def close(self) -> None:
        """Frees the load when no run is under way any more, and waits for that."""
        if self._born == _forks:
            with self._lock:
                super().close()


class _Io:
    """The tensors of a method as C lends them; valid while its program lives."""

    def __init__(self, program: ffi.CData, method: str) -> None:
        name, error = encode(method, "method"), ffi.new("struct tandem_error *")
        arrays, counts = ffi.new("const struct tandem_io *[3]"), ffi.new("size_t[3]")
        errors.check(lib.tandem_program_method_io(program, name, arrays, counts, arrays + 1, counts + 1, error), error)
        errors.check(lib.tandem_program_method_attributes(program, name, arrays + 2, counts + 2, error), error)
        self.inputs, self.outputs, self.attributes = arrays[0], arrays[1], arrays[2]
        self.input_count, self.output_count, self.attribute_count = counts[0], counts[1], counts[2]
        constants = ffi.new("const struct tandem_constant **")
        errors.check(lib.tandem_program_method_constants(program, name, constants, counts, error), error)
        # By position among all inputs; `...` stands for what is none of these.
        found = [ffi.addressof(constants[0], i) for i in range(counts[0])]
        self.constants: dict[int, Any] = {each.position: _read_constant(each) for each in found}

    def describe(self, name: str) -> MethodMeta:
        return MethodMeta(
            name,
            [TensorInfo(ffi.addressof(self.inputs, i)) for i in range(self.input_count)],
            [TensorInfo(ffi.addressof(self.outputs, i)) for i in range(self.output_count)],
            [TensorInfo(ffi.addressof(self.attributes, i)) for i in range(self.attribute_count)],
        )


class Program(_Owner):
    """A verified program. Made by `Runtime.load_program`."""

    def __init__(self, slot: ffi.CData, keep: object, origin: str) -> None:
        super().__init__(slot, f"program {origin}")
        self._keep = keep
        count = lib.tandem_program_method_count(slot[0])
        self._names = [ffi.string(lib.tandem_program_method_name(slot[0], i)).decode() for i in range(count)]

    @property
    def method_names(self) -> set[str]:
        return set(self._names)

    def load_method(self, name: str, **options: Value) -> Method:
        """Loads a method with options for its delegates (docs/options.md); every call makes a load of its own.

        Loads of the same engine share it. Blocks while an engine is built, without the interpreter lock.
        Errors: NotFoundError (method, operator, backend), BadOptionError, and what the delegate's load failed with.
        """
        handle = self._use()
        error = ffi.new("struct tandem_error *")
        flights: collections.deque[_cuda.Event] = collections.deque()
        method = _make_slot("struct tandem_method **", lib.tandem_method_destroy, (self._keep, flights))
        pairs = [spell(key, value) for key, value in options.items()]
        texts = [(ffi.new("char[]", key), ffi.new("char[]", value)) for key, value in pairs]
        array = ffi.new("struct tandem_option[]", texts)
        errors.check(lib.tandem_method_create(handle, encode(name, "method"), array, len(texts), method, error), error)
        return Method(method, flights, name, _Io(handle, name))

    def metadata(self, method_name: str) -> MethodMeta:
        """The tensors of a method, which is not loaded for it. Errors: NotFoundError."""
        handle = self._use()
        return _Io(handle, method_name).describe(method_name)


class BackendRegistry:
    """The backends that ExecuTorch's runtime has in this process."""

    @property
    def registered_backend_names(self) -> list[str]:
        return _read_names(lib.tandem_executorch_backend)

    def is_available(self, backend_name: str) -> bool:
        """True when the library behind a backend is there, which is opened for that; of a device a load tells."""
        info = ffi.new("struct tandem_vendor_info *")
        info.struct_size = ffi.sizeof("struct tandem_vendor_info")
        for index in range(lib.tandem_vendor_count()):
            if ffi.string(lib.tandem_vendor_backend(index)).decode() == backend_name:
                errors.check(lib.tandem_vendor_get_info(index, info, ffi.NULL))
                return bool(info.available)
        return backend_name in self.registered_backend_names


class OperatorRegistry:
    """The operators that have a kernel. ExecuTorch's own are opened by the first method that needs one."""

    @property
    def operator_names(self) -> set[str]:
        return set(_read_names(lib.tandem_executorch_operator))


class Runtime:
    """Loads programs. `Runtime.get()` is the process's one; `Runtime()` makes another, which `close` can empty."""

    def __init__(self) -> None:
        self.backend_registry = BackendRegistry()
        self.operator_registry = OperatorRegistry()
        self._programs: weakref.WeakSet[Program] = weakref.WeakSet()

    @staticmethod
    @functools.cache
    def get() -> Runtime:
        return Runtime()

    def load_program(
        self,
        data: Path | bytes | bytearray | memoryview | BinaryIO,
        *,
        verification: object = Verification.InternalConsistency,
        enable_etdump: bool = False,
        debug_buffer_size: int = 0,
        data_path: Path | Sequence[Path] | None = None,
    ) -> Program:
        """Reads and verifies a program.

        `data`: the path of a .pte file, which is mapped (replace a loaded file by rename, never write into it); or
        its bytes, any buffer of them, or a file that is open for reading. `bytes` and read-only mappings (and views of
        them) are used where they lie, all else is copied. `data_path`: .ptd files with data that the program keeps
        outside.
        Errors: NotFoundError (file), BadProgramError, InvalidArgumentError, OutOfMemoryError; UnsupportedError for
        `enable_etdump`, which only the stock runtime has.
        """
        if enable_etdump or debug_buffer_size:
            raise errors.UnsupportedError("tandem's runtime writes no ETDump: use executorch.runtime for that")
        desc, error = ffi.new("struct tandem_program_desc *"), ffi.new("struct tandem_error *")
        desc.struct_size = ffi.sizeof("struct tandem_program_desc")
        keep: list[object] = []
        program = _make_slot("struct tandem_program **", lib.tandem_program_destroy, keep)
        if isinstance(data, (str, os.PathLike)):
            origin = os.fsdecode(data)
            desc.path = path = ffi.new("char[]", _encode_path(data, "path"))
            keep.append(path)
        else:
            origin = "(bytes)"
            desc.bytes, desc.size = _place_bytes(data, keep)
        if data_path is None:
            data_path = ()
        elif isinstance(data_path, (str, os.PathLike)):
            data_path = (data_path,)
        paths = [ffi.new("char[]", _encode_path(each, "data_path")) for each in data_path]
        array = ffi.new("const char *[]", paths)
        desc.data_paths, desc.data_path_count = array, len(paths)
        errors.check(lib.tandem_program_create(desc, program, error), error)
        loaded = Program(program, keep, origin)
        self._programs.add(loaded)
        return loaded

    def close(self) -> None:
        """Closes the programs that were loaded through this; their methods stay. The runtime can be used again."""
        for program in list(self._programs):
            program.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        raise TypeError("a tandem.Runtime belongs to this process and cannot be copied or pickled")


def _read_constant(constant: ffi.CData) -> Any:
    values: dict[int, Any] = {
        lib.TANDEM_CONSTANT_NONE: None,
        lib.TANDEM_CONSTANT_BOOL: bool(constant.integer),
        lib.TANDEM_CONSTANT_INT: constant.integer,
        lib.TANDEM_CONSTANT_DOUBLE: constant.real,
    }
    return values.get(constant.kind, ...)


def _is_constant(value: Any, expected: Any) -> bool:
    """As ExecuTorch compares: types are equal, and floats nearly so."""
    if expected is ... or type(value) is not type(expected):
        return False
    if isinstance(expected, float):
        return bool(value == expected or abs(value - expected) <= 1e-4 + 1e-5 * abs(expected))
    return bool(value == expected)


def _encode_path(path: Path, what: str) -> bytes:
    return encode(os.fsdecode(path), what, encoding=sys.getfilesystemencoding())


def _read_names(function: Callable[[int], ffi.CData]) -> list[str]:
    names: list[str] = []
    while name := function(len(names)):
        names.append(ffi.string(name).decode(errors="replace"))
    return names


def _place_bytes(data: Any, keep: list[object]) -> tuple[ffi.CData, int]:
    """Address and size of a program's bytes at a multiple of 16; what holds them is added to `keep`."""
    try:  # a mapping is both a buffer and a file
        view = memoryview(data)
    except TypeError:
        if isinstance(data, io.TextIOBase):
            raise TypeError('data is a file that was opened as text: open it with mode "rb"') from None
        if hasattr(data, "read"):
            return _place_bytes(data.read(), keep)
        raise TypeError(
            f"data is of type {type(data).__name__}: expected the path of a .pte file, its bytes, or an open file"
        ) from None
    if view.nbytes == 0:
        raise errors.BadProgramError("the program has no bytes")
    # Not any view that is read-only: its owner may write to what lies below.
    if isinstance(view.obj, (bytes, mmap.mmap)) and view.readonly and view.contiguous:
        pointer = ffi.from_buffer(view)
        if int(ffi.cast("uintptr_t", pointer)) % 16 == 0:
            keep.append(pointer)
            return pointer, view.nbytes
    memory = np.empty(view.nbytes + 15, np.uint8)
    start = -memory.ctypes.data % 16
    memory[start : start + view.nbytes] = np.frombuffer(view.tobytes(), np.uint8)
    keep.append(memory)
    return ffi.cast("char *", memory.ctypes.data + start), view.nbytes
