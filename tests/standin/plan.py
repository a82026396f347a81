"""Plans of the stand-in libnvinfer and payloads around them: the same bytes as plan.c. For tests only.

    plan = Plan("mlp")
    x = plan.input("x", FLOAT, [-1, 8], bounds=[([1, 8], [4, 8], [8, 8])])
    y = plan.output("y", FLOAT, [-1, 4])
    plan.gemm(x, y, 8, 4, seed=1)
    open("mlp.payload", "wb").write(payload(plan.bytes()))
"""

import json
import struct

FLOAT, HALF, INT8, INT32, BOOL, UINT8, BF16, INT64 = 0, 1, 2, 3, 4, 5, 7, 8
INPUT, OUTPUT = 1, 2
DEVICE, HOST = 0, 1
GEMM, COPY, ADD, CACHE, SLICE, SHAPE, POSITIVE = range(1, 8)
REFITTABLE, STRIPPED, STREAMABLE, HOST_CODE = 1, 2, 4, 8
RANK_MAX = 8


def weight(seed, index, k):
    """One weight; see standin_weight in plan.h."""
    mixed = ((seed + 1) * 2654435761 ^ (index + 1) * 2246822519) & 0xFFFFFFFF
    mixed ^= mixed >> 15
    mixed = mixed * 3266489917 & 0xFFFFFFFF
    mixed ^= mixed >> 13
    scale, i = 1.0, 1
    while i < k:
        scale /= 2.0
        i *= 4
    return (-2.0, -1.0, 1.0, 2.0)[mixed & 3] * scale


def _align(size, to):
    return (size + to - 1) // to * to


def _dims(dims):
    return list(dims) + [0] * (RANK_MAX - len(dims))


class Plan:
    """Collects tensors and layers; bytes() lays them out."""

    def __init__(self, name, flags=0, compute=0, library=0, hardware=0, scratch_base=0, scratch_per_row=0):
        self.name = name
        self.flags = flags
        self.compute = compute
        self.library = library
        self.hardware = hardware
        self.scratch_base = scratch_base
        self.scratch_per_row = scratch_per_row
        self.tensors = []
        self.layers = []
        self.temporaries = 0
        self.weights = bytearray()

    def _tensor(self, name, mode, dtype, dims, location, form, shape_io, alias, bounds):
        assert self.temporaries == 0, "temporaries come after all tensors"
        self.tensors.append(
            dict(name=name, mode=mode, dtype=dtype, dims=list(dims), location=location, format=form,
                 shape_io=int(shape_io), alias=alias, bounds=bounds or [])
        )
        return len(self.tensors) - 1

    def input(self, name, dtype, dims, bounds=None, location=DEVICE, shape_io=False, format=0):
        """bounds: one (min, opt, max) a profile."""
        return self._tensor(name, INPUT, dtype, dims, location, format, shape_io, -1, bounds)

    def output(self, name, dtype, dims, alias=-1, location=DEVICE, shape_io=False, format=0):
        return self._tensor(name, OUTPUT, dtype, dims, location, format, shape_io, alias, None)

    def temporary(self):
        self.temporaries += 1
        return len(self.tensors) + self.temporaries - 1

    def gemm(self, a, y, k, n, relu=False, seed=0):
        self.weights += bytes(_align(len(self.weights), 64) - len(self.weights))
        at = len(self.weights)
        count = k * n + n
        stripped = self.flags & STRIPPED
        values = (0.0 if stripped else weight(seed, i, k) for i in range(count))
        self.weights += struct.pack("<%df" % count, *values)
        self.layers.append(struct.pack("<IIiiiiqqQQQ", GEMM, int(relu), a, -1, y, 0, k, n, at, count * 4, 0))

    def layer(self, kind, a, y, b=-1):
        self.layers.append(struct.pack("<IIiiiiqqQQQ", kind, 0, a, b, y, 0, 0, 0, 0, 0, 0))

    def bytes(self):
        profiles = max([len(t["bounds"]) for t in self.tensors] + [1])
        body = b""
        for tensor in self.tensors:
            body += struct.pack("<64s8i8q", tensor["name"].encode(), tensor["dtype"], tensor["mode"], tensor["location"],
                                tensor["format"], len(tensor["dims"]), tensor["alias"], tensor["shape_io"], 0,
                                *_dims(tensor["dims"]))
        for profile in range(profiles):
            for tensor in self.tensors:
                if profile < len(tensor["bounds"]):
                    bounds = tensor["bounds"][profile]
                else:
                    bounds = [tensor["dims"] if tensor["mode"] == INPUT else []] * 3
                for dims in bounds:
                    body += struct.pack("<8q", *_dims(dims))
        body += b"".join(self.layers)
        offset = _align(128 + len(body), 64)
        size = offset + len(self.weights)
        header = struct.pack("<8sIIQIIIIIIqqQQII40s", b"STANDIN", 1, self.flags, size, self.compute, self.library,
                             len(self.tensors), profiles, len(self.layers), self.temporaries, self.scratch_base,
                             self.scratch_per_row, offset, len(self.weights), self.hardware, 0, self.name.encode())
        return header + body + bytes(offset - 128 - len(body)) + bytes(self.weights)


def mlp(name, widths, rows=(1, 1, 1), seed=0, relu=False, **header):
    """x [rows, widths[0]] -> y [rows, widths[-1]]; rows: min, opt, max. Layer i has seed + i."""
    plan = Plan(name, **header)
    shown = rows[2] if rows[0] == rows[2] else -1
    x = plan.input("x", FLOAT, [shown, widths[0]], bounds=[[[r, widths[0]] for r in rows]])
    y = plan.output("y", FLOAT, [shown, widths[-1]])
    last = len(widths) - 2
    for i in range(last + 1):
        to = y if i == last else plan.temporary()
        plan.gemm(x, to, widths[i], widths[i + 1], relu and i != last, seed + i)
        x = to
    return plan.bytes()


def payload(plan, metadata=None, aliases=None, device_id=0, engine_key=None):
    """TR01, or TR02 where there are aliases: [(output, input, kind)], by default the plan's own."""
    tensors = []
    if plan[:8] == b"STANDIN\0":
        (count,) = struct.unpack_from("<I", plan, 32)
        for i in range(count):
            fields = struct.unpack_from("<64s8i", plan, 128 + 160 * i)
            tensors.append((fields[0].rstrip(b"\0").decode(), fields[2], fields[6]))
    if not aliases:
        aliases = [(name, tensors[alias][0], "kv_cache_update") for name, _, alias in tensors if alias >= 0]
    if metadata is None:
        bindings = [
            {"name": name, "dtype": "", "shape": [], "is_input": mode == INPUT}
            for wanted in (INPUT, OUTPUT)
            for name, mode, _ in tensors
            if mode == wanted
        ]
        data = {
            "io_bindings": bindings,
            "aliased_io": [{"output": o, "input": i, "kind": k} for o, i, k in aliases],
            "hardware_compatible": False,
            "device_id": device_id,
        }
        if engine_key is not None:
            data["engine_key"] = engine_key
        data.update(serialized_metadata="", target_platform="")
        metadata = json.dumps(data, separators=(",", ":"))
    text = metadata.encode()
    offset = _align(32 + len(text), 16)
    engine = b"" if engine_key is not None else plan
    header = struct.pack("<4sIIIQ8s", b"TR02" if aliases else b"TR01", 32, len(text), offset, len(engine), b"\1")
    return header + text + bytes(offset - 32 - len(text)) + engine


def _cache():
    plan = Plan("cache")
    x = plan.input("x", FLOAT, [8])
    cache = plan.input("cache", FLOAT, [4, 8])
    y = plan.output("y", FLOAT, [4, 4])
    out = plan.output("cache_out", FLOAT, [4, 8], alias=cache)
    plan.layer(CACHE, cache, out, b=x)
    plan.gemm(out, y, 8, 4, seed=5)
    return plan.bytes()


def _shapes():
    plan = Plan("shapes")
    x = plan.input("x", FLOAT, [-1], bounds=[([0], [8], [16]), ([17], [32], [64])])
    wanted = plan.input("wanted", INT64, [2], location=HOST, shape_io=True)
    y = plan.output("y", FLOAT, [-1, -1])
    shape = plan.output("shape", INT64, [1], location=HOST, shape_io=True)
    plan.layer(SLICE, x, y, b=wanted)
    plan.layer(SHAPE, x, shape)
    return plan.bytes()


def _positive():
    plan = Plan("positive")
    x = plan.input("x", FLOAT, [-1], bounds=[([1], [8], [64])])
    y = plan.output("positive", FLOAT, [-1])
    plan.layer(POSITIVE, x, y)
    return plan.bytes()


SAMPLES = {
    "mlp": lambda: mlp("mlp", [8, 16, 4], (2, 2, 2), seed=1, relu=True),
    "dynamic": lambda: mlp("dynamic", [8, 16, 4], (1, 4, 8), seed=2, relu=True, scratch_base=1000,
                           scratch_per_row=100),
    "stream": lambda: mlp("stream", [8, 32, 32, 32, 4], seed=3, flags=STREAMABLE),
    "stripped": lambda: mlp("stripped", [8, 4], seed=4, flags=STRIPPED | REFITTABLE),
    "cache": _cache,
    "shapes": _shapes,
    "positive": _positive,
}


def sample(name):
    return SAMPLES[name]()
