"""What a test does in its child: tandem's plug-in, the stock runtime, the figures of both.

`tandem()` loads the plug-in as a user does, before executorch.runtime; `stock()` leaves it out.
"""

import ctypes
import gc
import os
import pathlib

import numpy as np

PLUGIN = os.environ.get("TANDEM_EXECUTORCH_LIBRARY") or str(
    pathlib.Path(__file__).parents[2] / "build/release/libtandem_executorch.so"
)
OK, INVALID_ARGUMENT, BAD_OPTION, BAD_PROGRAM, UNSUPPORTED, NOT_FOUND, INVALID_STATE = 0, 1, 2, 3, 4, 5, 11
ERROR, WARNING, INFO, DEBUG = range(4)

LOG_FUNCTION = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int, ctypes.c_char_p)


class Error(ctypes.Structure):
    _fields_ = [("code", ctypes.c_int), ("message", ctypes.c_char * 1024)]


class Stats(ctypes.Structure):
    _fields_ = [
        ("struct_size", ctypes.c_size_t),
        *((name, ctypes.c_uint64) for name in ("engines", "loads", "builds", "hits", "joined")),
        *((name, ctypes.c_uint64) for name in ("fallbacks", "failures")),
        *((name, ctypes.c_uint64) for name in ("bytes_held", "bytes_saved")),
        ("bytes_estimated", ctypes.c_bool),
        *((name, ctypes.c_double) for name in ("digest_seconds", "build_seconds")),
        ("log_lines_dropped", ctypes.c_uint64),
    ]


class LoadDesc(ctypes.Structure):
    _fields_ = [
        ("struct_size", ctypes.c_size_t),
        ("backend", ctypes.c_char_p),
        ("payload", ctypes.c_char_p),
        ("payload_size", ctypes.c_size_t),
        ("options", ctypes.c_void_p),
        ("option_count", ctypes.c_size_t),
        ("compile_specs", ctypes.c_void_p),
        ("compile_spec_count", ctypes.c_size_t),
        ("named_data", ctypes.c_void_p),
        ("label", ctypes.c_char_p),
        ("flags", ctypes.c_uint32),
    ]


class Tandem:
    """libtandem through ctypes, which gives the interpreter lock up around each call."""

    def __init__(self):
        self.library = ctypes.CDLL(PLUGIN)
        # The plug-in brings libtandem with it; its symbols are found through the plug-in.
        for name in ("tandem_stats_get", "tandem_set_option", "tandem_get_option", "tandem_load_create"):
            getattr(self.library, name).restype = ctypes.c_int
        self.library.tandem_executorch_active.restype = ctypes.c_bool
        self.library.tandem_load_destroy.restype = None
        self.library.tandem_load_destroy.argtypes = [ctypes.c_void_p]
        self.sink = None

    def stats(self):
        stats, error = Stats(ctypes.sizeof(Stats)), Error()
        assert self.library.tandem_stats_get(ctypes.byref(stats), ctypes.byref(error)) == OK, error.message
        return stats

    def set_option(self, key, value, backend="OpenvinoBackend"):
        """The status and the message."""
        error = Error()
        code = self.library.tandem_set_option(
            backend and backend.encode(), key.encode(), None if value is None else value.encode(), ctypes.byref(error)
        )
        assert code == error.code
        return code, error.message.decode()

    def get_option(self, key, backend="OpenvinoBackend"):
        value, error = ctypes.create_string_buffer(256), Error()
        code = self.library.tandem_get_option(
            backend.encode(), key.encode(), value, ctypes.c_size_t(len(value)), ctypes.byref(error)
        )
        assert code == OK, error.message
        return value.value.decode()

    def register(self):
        error = Error()
        return self.library.tandem_executorch_register(ctypes.byref(error)), error.message.decode()

    def active(self, backend="OpenvinoBackend"):
        return self.library.tandem_executorch_active(backend.encode())

    def log_to(self, function):
        """Lines go to function(level, text), called with the interpreter lock."""
        self.sink = LOG_FUNCTION(lambda _, level, line: function(level, line.decode()))
        self.library.tandem_set_log_sink(self.sink, None)

    def load_payload(self, payload):
        """A load past ExecuTorch, made without the interpreter lock; give it to unload."""
        desc = LoadDesc(ctypes.sizeof(LoadDesc), b"OpenvinoBackend", payload, len(payload))
        load, error = ctypes.c_void_p(), Error()
        code = self.library.tandem_load_create(ctypes.byref(desc), ctypes.byref(load), ctypes.byref(error))
        assert code == OK, error.message
        return load

    def unload(self, load):
        self.library.tandem_load_destroy(load)


class Host:
    """The stock runtime, with tandem or without."""

    def __init__(self, tandem):
        self.tandem = tandem
        from executorch.runtime import Runtime

        self.runtime = Runtime.get()
        gc.freeze()  # what torch made: a collection of its million objects takes a second

    def program(self, source, **options):
        """`source`: a path, bytes, or a model."""
        return self.runtime.load_program(getattr(source, "path", source), **options)

    def load(self, source, method="forward", **options):
        """A fresh program and its method, kept together: the stock Method needs its Program."""
        program = self.program(source, **options)
        return Loaded(program, program.load_method(method))


class Loaded:
    def __init__(self, program, method):
        self.program, self.method = program, method

    def __call__(self, *inputs):
        import torch

        tensors = [value if isinstance(value, torch.Tensor) else torch.from_numpy(value) for value in inputs]
        return [output.numpy() for output in self.method.execute(tensors)]


def tandem():
    return Host(Tandem())


def stock():
    return Host(None)


def same(found, wanted):
    """Equal to the last bit, shapes and types included."""
    assert len(found) == len(wanted), (len(found), len(wanted))
    for index, (one, other) in enumerate(zip(found, wanted)):
        assert one.dtype == other.dtype and one.shape == other.shape, (index, one.dtype, one.shape, other.shape)
        assert one.tobytes() == other.tobytes(), f"output {index}: {np.count_nonzero(one != other)} values differ"


def collect():
    gc.collect()


def private_bytes():
    """Anonymous + Swap of this process: what the other figures mix with the page cache."""
    fields = dict(line.split()[:2] for line in open("/proc/self/smaps_rollup") if line.endswith("kB\n"))
    return 1024 * (int(fields["Anonymous:"]) + int(fields["Swap:"]))


def open_files():
    return len(os.listdir("/proc/self/fd"))
