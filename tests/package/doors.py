"""What a test does in its child: the two runtimes behind one face, and the fake vendor's controls.

`open_door("stock")` is `import tandem`, then ExecuTorch's own runtime; `open_door("own")` is tandem's.
"""

import ctypes
import gc
import os
import threading

import numpy as np

OPEN, PARSE, PAYLOAD_DESTROY, DESCRIBE, RESOLVE, BUILD, ENGINE_DESTROY, CONTEXT_CREATE, CONTEXT_DESTROY, RUN = range(10)


class Door:
    """load(path) gives a function of arrays that returns arrays; it keeps its program and method."""

    def __init__(self, kind):
        self.kind = kind
        import tandem

        self.tandem = tandem
        if kind == "stock":
            from executorch.runtime import Runtime

            gc.freeze()  # what torch made: a collection of its million objects takes a second
        else:
            Runtime = tandem.Runtime
        self.runtime = Runtime.get()

    def load(self, path, method="forward"):
        program = self.runtime.load_program(getattr(path, "path", path))
        return Loaded(self.kind, program, program.load_method(method))


class Loaded:
    def __init__(self, kind, program, method):
        self.kind, self.program, self.method = kind, program, method

    def __call__(self, *arrays):
        if self.kind == "own":
            return [np.asarray(output) for output in self.method.execute(list(arrays))]
        import torch

        return [output.numpy() for output in self.method.execute([torch.from_numpy(array) for array in arrays])]


def open_door(kind):
    return Door(kind)


class Model(ctypes.Structure):
    """struct fake_model."""

    _fields_ = [
        ("flags", ctypes.c_uint32),
        ("rank", ctypes.c_int32),
        ("min", ctypes.c_int64 * 4),
        ("max", ctypes.c_int64 * 4),
        ("streamable_size", ctypes.c_int64),
        ("cost", ctypes.c_uint64),
        ("seed", ctypes.c_uint32),
        ("pair_count", ctypes.c_uint32),
    ]


def declare(library):
    for name in ("fake_payload_create", "fake_vendor_create"):
        getattr(library, name).restype = ctypes.c_void_p
    library.fake_count.restype = ctypes.c_uint64
    return library


class Fake:
    """The fake vendor, registered as FakeBackend with the libtandem of this process and with ExecuTorch."""

    def __init__(self, path):
        from tandem._native import ffi, lib

        self.library = declare(ctypes.CDLL(str(path)))
        self.vendor = ctypes.c_void_p(self.library.fake_vendor_create(b"fake", b"FakeBackend", 0))
        assert self.vendor.value, "the fake vendor was refused"
        assert lib.tandem_executorch_register(ffi.NULL) == 0
        self.kept = []

    def count(self, entry):
        return self.library.fake_count(self.vendor, entry)

    def delay(self, entry, milliseconds):
        self.library.fake_delay(self.vendor, entry, milliseconds)

    def say(self, entry, level, text, times=1, own_thread=False):
        self.kept.append(ctypes.c_char_p(text.encode()))
        self.library.fake_say(self.vendor, entry, level, 0, self.kept[-1], times, ctypes.c_bool(own_thread))

    def close_gate(self, entry):
        self.library.fake_gate_close(self.vendor, entry)

    def open_gate(self, entry):
        self.library.fake_gate_open(self.vendor, entry)

    def wait_inside(self, entry, count):
        self.library.fake_wait_inside.restype = ctypes.c_bool
        assert self.library.fake_wait_inside(self.vendor, entry, count), "nobody came"

    def violations(self):
        text = ctypes.c_char_p()
        self.library.fake_violations.restype = ctypes.c_uint64
        return self.library.fake_violations(self.vendor, ctypes.byref(text)), text.value


def register_demo(path):
    """The demo vendor, registered as DemoBackend with the libtandem of this process and with ExecuTorch."""
    from tandem._native import ffi, lib

    assert ctypes.CDLL(str(path)).demo_register(None) == 0
    assert lib.tandem_executorch_register(ffi.NULL) == 0


def in_threads(*functions, timeout=60):
    """Calls the functions at once, each on a thread; returns their values, raises the first error."""
    values, errors, barrier = [None] * len(functions), [], threading.Barrier(len(functions))

    def call(index):
        try:
            barrier.wait(timeout)
            values[index] = functions[index]()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=call, args=(index,), daemon=True) for index in range(len(functions))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout)
        assert not thread.is_alive(), f"a thread still runs after {timeout} s"
    if errors:
        raise errors[0]
    return values


def private_bytes():
    """Anonymous + Swap of this process."""
    fields = dict(line.split()[:2] for line in open("/proc/self/smaps_rollup") if line.endswith("kB\n"))
    return 1024 * (int(fields["Anonymous:"]) + int(fields["Swap:"]))


def descriptors():
    return len(os.listdir("/proc/self/fd"))


def threads():
    return len(os.listdir("/proc/self/task"))
