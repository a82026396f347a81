"""Arrays on a CUDA device: used in place, ordered by streams, handed over without a copy.

The driver and TensorRT are the stand-ins of tests/standin: what is tested is which addresses, streams and calls reach
them. Without a GPU nothing here tells of speed.
"""

import contextlib
import ctypes
import gc
import os
import pathlib
import subprocess
import sys
import threading
import weakref

import fresh
import host
import numpy as np
import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
STANDIN = pathlib.Path(os.environ.get("TANDEM_BUILD", ROOT / "build/release")) / "tests/standin"
ENVIRONMENT = {
    "TANDEM_CUDA_LIBRARY": STANDIN / "cuda/libcuda.so.1",
    "TANDEM_TENSORRT_LIBRARY": STANDIN / "11/libnvinfer.so.11",
}
on_device = pytest.mark.fresh(environment=ENVIRONMENT)


@pytest.fixture(scope="session")
def program(tmp_path_factory):
    """One delegate of the stand-in's: float32 [2, 8] to [2, 4]."""
    folder = tmp_path_factory.mktemp("cuda")
    subprocess.run([STANDIN / "standin_plan", folder], check=True, timeout=60)
    make = [sys.executable, ROOT / "tests/tensorrt/make_program.py", folder / "mlp.payload", folder / "mlp.pte"]
    subprocess.run(make, check=True, timeout=200, capture_output=True)
    return folder / "mlp.pte"


class CudaArray:
    """A producer of CUDA tensors, as torch is one: it notes which stream it was asked to order its work before."""

    def __init__(self, values):
        from tandem import _cuda, tensors

        values = np.asarray(values)
        self.memory = _cuda.DeviceArray(values.shape, values.dtype, tensors._TO_DLPACK[values.dtype.name], 0)
        self.asked = []
        with _cuda._current(_cuda._primary_context(0)):
            copy = ctypes.CDLL(os.environ["TANDEM_CUDA_LIBRARY"]).cuMemcpyHtoD_v2
            source = np.ascontiguousarray(values)
            size = ctypes.c_size_t(values.nbytes)
            assert copy(ctypes.c_uint64(self.memory.address), ctypes.c_void_p(source.ctypes.data), size) == 0

    def __dlpack__(self, *, stream=-1):
        self.asked.append(stream)
        return self.memory.__dlpack__()

    def __dlpack_device__(self):
        return self.memory.__dlpack_device__()


def load(program):
    import tandem

    return tandem.Runtime.get().load_program(program).load_method("forward")


def values():
    return np.arange(16, dtype=np.float32).reshape(2, 8) / 4


def free_memory():
    from tandem import _cuda

    free, total = ctypes.c_size_t(), ctypes.c_size_t()
    with _cuda._current(_cuda._primary_context(0)):
        library = ctypes.CDLL(os.environ["TANDEM_CUDA_LIBRARY"])
        assert library.cuMemGetInfo_v2(ctypes.byref(free), ctypes.byref(total)) == 0
    return free.value


def make_stream():
    from tandem import _cuda

    stream = ctypes.c_void_p()
    with _cuda._current(_cuda._primary_context(0)):
        create = ctypes.CDLL(os.environ["TANDEM_CUDA_LIBRARY"]).cuStreamCreate
        assert create(ctypes.byref(stream), 1) == 0
    return stream


@on_device
def test_device_and_host_tensors_give_the_same(program):
    method = load(program)
    (wanted,) = method.execute([values()])
    assert isinstance(wanted, np.ndarray) and wanted.any()
    given = CudaArray(values())
    host.same(method.execute([given]), [wanted])
    (left,) = method.execute([given], device="cuda")
    assert (left.shape, left.dtype, left.__dlpack_device__()) == ((2, 4), np.float32, (2, 0))
    host.same([left.numpy()], [wanted])
    room = CudaArray(np.zeros((2, 4), np.float32))
    assert method.execute([values()], out=[room])[0] is room
    host.same([room.memory.numpy()], [wanted])
    inside = np.zeros((2, 4), np.float32)
    method.execute([given], out=[inside])
    host.same([inside], [wanted])


@on_device
def test_a_device_tensor_is_bound_where_it_lies(program):
    """What C is given is the producer's address, of inputs and outputs alike."""
    from tandem._native import ffi

    method, given, room = load(program), CudaArray(values()), CudaArray(np.zeros((2, 4), np.float32))
    method.execute([given], out=[room])
    for tensors, array in ((method._input_tensors, given), (method._output_tensors, room)):
        assert int(ffi.cast("uintptr_t", tensors[0].data)) == array.memory.address


class Noted:
    """A function of the driver as tandem's Python half calls it, its arguments noted."""

    def __init__(self, name):
        from tandem import _cuda

        self.arguments = []
        driver = _cuda._driver()
        real = driver[name]

        def call(*arguments):
            self.arguments.append(tuple(getattr(each, "value", each) for each in arguments))
            return real(*arguments)

        driver[name] = call


@on_device
def test_work_is_ordered_by_the_stream_that_is_given(program):
    """Without a stream the producer orders its work before the legacy one, which is waited for. It must be asked to:
    torch orders nothing when `stream` is left out, and on an H200 19 of 20 runs then read old numbers."""
    method, given, waits = load(program), CudaArray(values()), Noted("cuStreamSynchronize")
    (wanted,) = method.execute([given])
    assert given.asked == [1] and waits.arguments == [(1,)]
    stream = make_stream()

    class OfTorch:
        cuda_stream = stream.value

    class OfCupy:
        ptr = stream.value

    class Standard:
        def __cuda_stream__(self):
            return 0, stream.value

    room = CudaArray(np.zeros((2, 4), np.float32))
    for each in (stream.value, OfTorch(), OfCupy(), Standard()):
        host.same([method.execute([given], out=[room], stream=each)[0].memory.numpy()], [wanted])
        assert given.asked.pop() == stream.value == room.asked.pop()
    assert waits.arguments == [(1,)]
    method.execute([given], stream=0)
    assert given.asked.pop() == 1
    host.same(method.execute([given]), [wanted])
    assert given.asked.pop() == 1 and waits.arguments == [(1,), (1,)]
    with pytest.raises(TypeError, match="stream"):
        method.execute([given], stream="main")


@on_device
def test_memory_on_the_device_is_freed_with_its_last_user(program):
    """Arrays, capsules taken and not taken, in every order."""
    method = load(program)
    (wanted,) = method.execute([values()])  # its staging buffers stay
    gc.collect()
    before = free_memory()
    (left,) = method.execute([values()], device="cuda")
    held = free_memory()
    assert held < before
    capsules = [left.__dlpack__() for _ in range(3)]
    host.same([left.numpy()], [wanted])
    del left
    gc.collect()
    assert free_memory() == held
    taken = take(capsules.pop())
    del capsules
    gc.collect()
    assert free_memory() == held
    taken.contents.deleter(taken)
    assert free_memory() == before
    del method
    gc.collect()


class Managed(ctypes.Structure):
    """DLManagedTensor, as another library reads it."""


Managed._fields_ = [
    ("data", ctypes.c_void_p),
    ("device_type", ctypes.c_int32),
    ("device_id", ctypes.c_int32),
    ("rank", ctypes.c_int32),
    ("code", ctypes.c_uint8),
    ("bits", ctypes.c_uint8),
    ("lanes", ctypes.c_uint16),
    ("shape", ctypes.POINTER(ctypes.c_int64)),
    ("strides", ctypes.POINTER(ctypes.c_int64)),
    ("byte_offset", ctypes.c_uint64),
    ("context", ctypes.c_void_p),
    ("deleter", ctypes.CFUNCTYPE(None, ctypes.POINTER(Managed))),
]


def take(capsule):
    """Takes a tensor out of its capsule, which is renamed for that."""
    get, rename = ctypes.pythonapi.PyCapsule_GetPointer, ctypes.pythonapi.PyCapsule_SetName
    get.restype, get.argtypes = ctypes.c_void_p, (ctypes.py_object, ctypes.c_char_p)
    rename.argtypes = (ctypes.py_object, ctypes.c_char_p)
    managed = ctypes.cast(get(capsule, b"dltensor"), ctypes.POINTER(Managed))
    assert (managed.contents.device_type, managed.contents.rank, managed.contents.bits) == (2, 2, 32)
    assert managed.contents.shape[0:2] == [2, 4]
    assert rename(capsule, USED) == 0
    return managed


USED = b"used_dltensor"


@contextlib.contextmanager
def held_kernels():
    """Kernels stop before they run: what was queued is in flight until the end of the block."""
    control = ctypes.CDLL(os.environ["TANDEM_CUDA_LIBRARY"])
    control.standin_cuda_hold(1)
    try:
        yield
    finally:
        control.standin_cuda_hold(0)


@on_device
def test_a_run_that_returns_early_tells_when_its_outputs_are_written(program):
    import tandem

    method, given, stream = load(program), CudaArray(values()), make_stream()
    (wanted,) = method.execute([values()])
    room = CudaArray(np.zeros((2, 4), np.float32))
    with held_kernels():
        outputs, done = method.execute([given], out=[room], stream=stream.value, return_early=True)
        assert outputs[0] is room and isinstance(done, tandem.Event) and done.handle
        assert not done.query() and not room.memory.numpy().any()
        left, last = method.execute([given], device="cuda", stream=stream.value, return_early=True)
        assert done.handle != last.handle and not last.query()
    done.wait()
    assert done.query()
    host.same([room.memory.numpy()], [wanted])
    host.same([left[0].numpy()], [wanted])  # waits for its own run
    assert last.query()
    inside, done = method.execute([values()], stream=stream.value, return_early=True)
    done.wait()
    host.same(inside, [wanted])
    host.same(method.execute([given]), [wanted])
    assert not method._flights


@on_device
def test_what_a_run_in_flight_uses_stays_whoever_drops_it(program):
    from tandem import _cuda

    method, stream = load(program), make_stream()
    given, room = CudaArray(values()), CudaArray(np.zeros((2, 4), np.float32))
    (wanted,) = method.execute([values()])
    gc.collect()
    before = free_memory()
    with held_kernels():
        inputs = [CudaArray(values())]
        outputs, done = method.execute(inputs, device="cuda", stream=stream.value, return_early=True)
        del inputs, outputs
        _, last = method.execute([given], out=[room], stream=stream.value, return_early=True)
        gc.collect()
        assert free_memory() < before
        gone = weakref.ref(method)
        closing = threading.Thread(target=method.close)
        closing.start()
        del method
    closing.join(20)
    assert not closing.is_alive()
    del closing
    gc.collect()
    assert gone() is None
    assert done.query() and last.query()  # after the method
    host.same([room.memory.numpy()], [wanted])
    library = ctypes.CDLL(os.environ["TANDEM_CUDA_LIBRARY"])
    assert library.standin_cuda_violations() == 0
    del given, room, done, last
    gc.collect()
    assert free_memory() >= before
    again = load(program)
    for _ in range(50):  # events that nobody waits for do not pile up
        again.execute([values()], stream=stream.value, return_early=True)
        with _cuda._current(_cuda._primary_context(0)):
            _cuda._call("cuStreamSynchronize", stream)
    assert len(again._flights) == 1


@on_device
def test_an_output_that_is_not_written_yet_makes_its_consumers_stream_wait(program):
    method, streams = load(program), [make_stream(), make_stream()]
    method.execute([values()])
    with held_kernels():
        (left,), done = method.execute([values()], device="cuda", stream=streams[0].value, return_early=True)
        waits = Noted("cuStreamWaitEvent")
        capsule = left.__dlpack__(stream=streams[1].value)
        assert waits.arguments == [(streams[1].value, done.handle, 0)]
        left.__dlpack__(stream=-1)
        assert len(waits.arguments) == 1
        left.__dlpack__(stream=None)
        assert waits.arguments[1][0] == 1
    done.wait()
    del capsule


@on_device
def test_an_early_return_that_cannot_be_is_refused(program, data):
    import tandem

    method, stream = load(program), make_stream()
    (wanted,) = method.execute([values()])
    with pytest.raises(tandem.InvalidArgumentError, match="needs stream"):
        method.execute([values()], return_early=True)
    kernels = tandem.Runtime.get().load_program(data / "pte/portable_mlp.pte").load_method("forward")
    with pytest.raises(tandem.UnsupportedError, match="leave out .*return_early"):
        kernels.execute([np.load(data / "pte/portable_mlp.forward.0.in0.npy")], stream=1, return_early=True)
    library = ctypes.CDLL(os.environ["TANDEM_CUDA_LIBRARY"])
    for function, nth in (("cuEventCreate", 1), ("cuEventRecord", 1), ("cuEventRecord", 2)):
        library.standin_cuda_fail_at(function.encode(), nth, 999)
        with pytest.raises(tandem.DeviceError):
            method.execute([values()], stream=stream.value, return_early=True)
        library.standin_cuda_fail_at(None, 0, 0)
        host.same(method.execute([values()]), [wanted])
    outputs, done = method.execute([values()], stream=stream.value, return_early=True)
    done.wait()
    host.same(outputs, [wanted])

    def child():
        for act in (done.wait, done.query):
            with pytest.raises(tandem.DeviceLostError, match="forked"):
                act()

    assert fresh.fork_inside(child) is True


@on_device
def test_what_cannot_be_used_in_place_is_refused_by_name(program, data):
    import tandem

    method = load(program)
    wide = CudaArray(np.zeros((2, 16), np.float32))

    class Strided(CudaArray):
        """Every second column."""

        def __init__(self):
            super().__init__(np.zeros((2, 16), np.float32))

        def __dlpack__(self, *, stream=-1):
            capsule = self.memory.__dlpack__()
            get = ctypes.pythonapi.PyCapsule_GetPointer
            get.restype, get.argtypes = ctypes.c_void_p, (ctypes.py_object, ctypes.c_char_p)
            managed = ctypes.cast(get(capsule, b"dltensor"), ctypes.POINTER(Managed)).contents
            self.strides = (ctypes.c_int64 * 2)(16, 2)
            managed.shape[1], managed.strides = 8, self.strides
            return capsule

    (wanted,) = method.execute([values()])
    for inputs, out, match in [
        ([Strided()], None, "input0.*contiguous"),
        ([wide], None, r"input0.*\[2, 16\]"),
        ([CudaArray(values().astype(np.float64))], None, "input0.*float64"),
        ([values()], [CudaArray(np.zeros((4, 2), np.float32))], r"output0.*\(4, 2\)"),
        ([values()], [CudaArray(np.zeros((2, 4), np.int32))], "output0.*int32"),
    ]:
        with pytest.raises(tandem.InvalidArgumentError, match=match):
            method.execute(inputs, out=out)
        host.same(method.execute([values()]), [wanted])
    with pytest.raises(tandem.InvalidArgumentError, match="tpu"):
        method.execute([values()], device="tpu")
    kernels = tandem.Runtime.get().load_program(data / "pte/portable_mlp.pte").load_method("forward")
    x = np.load(data / "pte/portable_mlp.forward.0.in0.npy")
    for more in ({"device": "cuda"}, {"stream": 1}):
        with pytest.raises(tandem.UnsupportedError, match="leave out"):
            kernels.execute([x], **more)
    with pytest.raises(tandem.UnsupportedError, match="host memory"):
        kernels.execute([CudaArray(x)])


def run_without_driver(program):
    import tandem
    from tandem import _cuda

    with pytest.raises(tandem.UnavailableError, match="/nowhere"):
        _cuda._primary_context(0)


def test_a_missing_driver_is_said(program):
    fresh.run(run_without_driver, program, environment={"TANDEM_CUDA_LIBRARY": "/nowhere"}).good()
