"""Arrays as tensors: every type of element, every layout, DLPack, and where outputs go.

The slots that stand between Python and C are tested alone for each type, since no kernel of ExecuTorch's computes with
all of them, and in whole runs where one does.
"""

import ctypes

import doors
import host
import numpy as np
import pytest

INTEGERS = ("uint8", "int8", "int16", "uint16", "int32", "uint32", "int64", "uint64")
PLAIN = ("bool", *INTEGERS, "float16", "float32", "float64")
NARROW = ("bfloat16", "float8_e4m3fn", "float8_e5m2")


def make_slot(dtype, low, high=None):
    """An input or output of that type whose sizes lie between low and high, and the struct that C would read."""
    from tandem import tensors
    from tandem._native import ffi

    number = next(number for number, each in tensors.DTYPES.items() if each == dtype)
    io, tensor = ffi.new("struct tandem_io *"), ffi.new("struct tandem_tensor *")
    name = ffi.new("char[]", b"x")
    io.name, io.dtype, io.rank = name, number, len(low)
    io.min[0 : len(low)], io.max[0 : len(low)] = low, high or low
    return io, tensor, name


def read_slot(tensor):
    """What C sees: the type's name, the shape, the bytes."""
    from tandem._native import ffi, lib

    assert not tensor.strides
    name = ffi.string(lib.tandem_dtype_name(tensor.dtype)).decode()
    return name, list(tensor.shape[0 : tensor.rank]), bytes(ffi.buffer(tensor.data, tensor.size))


def bind(value, dtype, shape):
    from tandem import tensors

    io, tensor, _name = make_slot(np.dtype(dtype), shape)
    keep = []
    tensors.Input("input", io, tensor).bind(value, keep)
    return read_slot(tensor)


def dtype_of(name):
    import ml_dtypes

    return np.dtype(getattr(ml_dtypes, name) if name in NARROW else name)


def layouts(plain):
    """The same values in every layout that NumPy has."""
    wide = np.zeros((*plain.shape[:-1], 2 * plain.shape[-1]), plain.dtype)
    wide[..., ::2] = plain
    shifted = np.zeros(plain.nbytes + 1, np.uint8)[1:].view(plain.dtype).reshape(plain.shape)
    shifted[...] = plain
    frozen = plain.copy()
    frozen.flags.writeable = False
    return {
        "contiguous": plain,
        "read-only": frozen,
        "sliced": wide[..., ::2],
        "fortran": np.asfortranarray(plain),
        "transposed": np.ascontiguousarray(plain.T).T,
        "negative strides": np.ascontiguousarray(plain[::-1, ..., ::-1])[::-1, ..., ::-1],
        "unaligned": shifted,
        "other byte order": plain.astype(plain.dtype.newbyteorder()) if plain.dtype.kind not in "V" else plain,
        "subclass": plain.view(np.memmap),
    }


@pytest.mark.fresh
@pytest.mark.parametrize("name", PLAIN + NARROW)
def test_every_type_and_layout_reaches_c_as_it_is(name):
    dtype = dtype_of(name)
    plain = np.arange(24).reshape(2, 3, 4).astype(dtype)
    for layout, value in layouts(plain).items():
        assert np.array_equal(value.astype(np.float64), plain.astype(np.float64)), layout
        assert bind(value, dtype, [2, 3, 4]) == (name, [2, 3, 4], plain.tobytes()), layout
    repeated = np.broadcast_to(plain[:1, :, :1], (2, 3, 4))
    assert 0 in repeated.strides
    assert bind(repeated, dtype, [2, 3, 4])[2] == np.ascontiguousarray(repeated).tobytes()
    assert bind(plain[1, 2, 3], dtype, []) == (name, [], plain[1, 2, 3].tobytes())
    assert bind(np.empty((0, 4), dtype), dtype, [0, 4]) == (name, [0, 4], b"")


@pytest.mark.fresh
@pytest.mark.parametrize("name", PLAIN + NARROW)
def test_tensors_of_torch_reach_c_as_they_are(name):
    import torch

    kind = getattr(torch, name)
    plain = torch.arange(24).reshape(2, 3, 4).to(kind)
    wanted = np.arange(24).reshape(2, 3, 4).astype(dtype_of(name)).tobytes()
    turned = plain.permute(2, 0, 1).contiguous().permute(1, 2, 0)
    for value in (plain, turned, torch.cat([plain, plain], 2)[..., :4], torch.stack([plain, plain])[1]):
        assert bind(value, dtype_of(name), [2, 3, 4]) == (name, [2, 3, 4], wanted)
    expanded = plain[:1].expand(2, -1, -1)
    assert bind(expanded, dtype_of(name), [2, 3, 4])[2] == wanted[: len(wanted) // 2] * 2
    assert bind(torch.empty(0, 4, dtype=kind), dtype_of(name), [0, 4]) == (name, [0, 4], b"")


@pytest.mark.fresh
def test_contiguous_arrays_are_read_where_they_lie():
    import torch
    from tandem import tensors
    from tandem._native import ffi

    array = np.arange(6, dtype=np.float32)
    for value, address in (
        (array, array.ctypes.data),
        (torch.from_numpy(array), array.ctypes.data),
        (OnlyDlpack(array), array.ctypes.data),
        (np.lib.stride_tricks.as_strided(array[:1], (6, 1), (4, 999)), array.ctypes.data),
    ):
        io, tensor, _name = make_slot(np.dtype(np.float32), list(np.shape(value) or (6,)))
        keep = []
        tensors.Input("input", io, tensor).bind(value, keep)
        assert int(ffi.cast("uintptr_t", tensor.data)) == address, type(value)


class OnlyDlpack:
    """What some library's array looks like that is known by DLPack alone."""

    def __init__(self, array, versioned=True):
        self.array, self.versioned = array, versioned

    @property
    def shape(self):
        return self.array.shape

    def __dlpack__(self, **request):
        if request and not self.versioned:
            raise TypeError("unexpected keyword argument")
        return self.array.__dlpack__(**request)

    def __dlpack_device__(self):
        return self.array.__dlpack_device__()


@pytest.mark.fresh
def test_dlpack_of_both_kinds_is_read_and_freed():
    import gc
    import weakref

    for frozen in (False, True):  # NumPy exports what is read-only versioned only
        array = np.arange(24, dtype=np.int16).reshape(2, 3, 4)[:, ::-1, ::2].copy()
        array.flags.writeable = not frozen
        wanted = array.tobytes()
        assert bind(OnlyDlpack(array), "int16", [2, 3, 2]) == ("int16", [2, 3, 2], wanted)
        assert bind(OnlyDlpack(array[::-1, :, ::-1]), "int16", [2, 3, 2])[2] == array[::-1, :, ::-1].tobytes()
        gone = weakref.ref(array)
        del array
        gc.collect()
        assert gone() is None


@pytest.mark.fresh
def test_what_is_no_tensor_of_the_input_is_refused_by_name():
    import tandem
    import torch

    ok = np.zeros((2, 2), np.float32)
    for value, error, match in [
        (ok.astype(np.float64), tandem.InvalidArgumentError, 'input "x" is float64: expected float32'),
        (torch.zeros(2, 2, dtype=torch.bfloat16), tandem.InvalidArgumentError, "bfloat16: expected float32"),
        (ok.astype(np.complex64), tandem.InvalidArgumentError, "complex64"),
        (torch.zeros(2, 2, dtype=torch.complex64), tandem.InvalidArgumentError, "unknown to tandem|complex64"),
        (np.array([["a"]]), tandem.InvalidArgumentError, "U1"),
        (np.ma.masked_array(ok, ok == 0), tandem.InvalidArgumentError, "mask"),
        (torch.zeros(2, 2, requires_grad=True), tandem.InvalidArgumentError, "x.*grad"),
        (torch.zeros(2, 2, device="meta"), tandem.Error, "x"),
        (torch.zeros(2, 2).to_sparse(), tandem.InvalidArgumentError, "x.*refuses DLPack"),
        (torch._neg_view(torch.ones(2, 2)), tandem.InvalidArgumentError, "x.*resolve_neg"),
        (np.zeros((1,) * 17, np.float32), tandem.InvalidArgumentError, "rank 17"),
        (1.5, tandem.InvalidArgumentError, "float 1.5"),
        ("text", TypeError, "x.*str"),
        (None, TypeError, "NoneType"),
        ([[0.0]], TypeError, "list"),
    ]:
        with pytest.raises(error, match=match):
            bind(value, "float32", [2, 2])


class Description:
    """A DLPack capsule that says what it is told to say, of four floats."""

    def __init__(self, **fields):
        from tandem._native import ffi

        self.managed, self.memory = ffi.new("struct dl_managed *"), ffi.new("float[4]", [1, 2, 3, 4])
        tensor = self.managed.tensor
        tensor.data, tensor.device_type, tensor.rank = self.memory, 1, 2
        tensor.code, tensor.bits, tensor.lanes = 2, 32, 1
        self.shape = self.strides = ffi.NULL
        for name, value in {"shape": [2, 2], **fields}.items():
            if isinstance(value, list):
                value = ffi.new("int64_t[]", value)
                setattr(self, name, value)
            setattr(tensor, name, value)

    def __dlpack__(self, **request):
        new = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)(
            ("PyCapsule_New", ctypes.pythonapi)
        )
        from tandem._native import ffi

        return new(int(ffi.cast("uintptr_t", self.managed)), b"dltensor", None)

    def __dlpack_device__(self):
        return 1, 0


@pytest.mark.fresh
def test_dlpack_that_describes_no_memory_is_refused_by_name():
    import tandem
    from tandem._native import ffi

    assert bind(Description(), "float32", [2, 2])[2] == np.arange(1, 5, dtype=np.float32).tobytes()
    for fields, match in [
        ({"data": ffi.NULL}, "x.*NULL"),
        ({"shape": ffi.NULL}, "x.*without a shape"),
        ({"rank": -1}, "x.*rank -1"),
        ({"rank": 1 << 30}, "x.*rank 1073741824"),
        ({"shape": [-2, 2]}, r"x.*\(-2, 2\)"),
        ({"shape": [1 << 62, 1 << 62]}, "x.*impossible"),
        ({"strides": [1 << 62, 1]}, "x.*impossible.*strides"),
        ({"strides": [1 << 62, -(1 << 62)]}, "x.*impossible.*strides"),
        ({"code": 99}, "x.*code 99"),
        ({"lanes": 4}, "x.*4 lanes"),
    ]:
        with pytest.raises(tandem.InvalidArgumentError, match=match):
            bind(Description(**fields), "float32", [2, 2])


@pytest.mark.fresh
def test_numbers_do_for_an_input_without_dimensions():
    import tandem

    assert bind(3, "float32", []) == ("float32", [], np.float32(3).tobytes())
    assert bind(2.5, dtype_of("bfloat16"), [])[2] == dtype_of("bfloat16").type(2.5).tobytes()
    assert bind(True, "bool", []) == ("bool", [], b"\1")
    for value, dtype in ((2.5, "int64"), (True, "int64"), (300, "uint8"), (1, "bool")):
        with pytest.raises(tandem.InvalidArgumentError, match="x"):
            bind(value, dtype, [])


# ---------------------------------------------------------------- whole runs


@pytest.mark.fresh
def test_layouts_give_the_same_numbers(models):
    """Field case 23, through Python."""
    import torch

    load = doors.open_door("own").load(models.convolution)
    (plain,), wanted = models.convolution.case()
    for layout, value in layouts(plain).items():
        host.same(load.method.execute([value]), wanted), layout
    image = torch.from_numpy(plain)
    for value in (image, image.to(memory_format=torch.channels_last), image.permute(0, 1, 3, 2).contiguous().mT):
        host.same(load.method.execute([value]), wanted)
    repeated = np.broadcast_to(plain[:1], plain.shape)
    host.same(load.method.execute([repeated]), [np.broadcast_to(wanted[0][:1], wanted[0].shape).copy()])
    host.same(load.method.execute([image[:1].expand(2, -1, -1, -1)]), load.method.execute([repeated]))


@pytest.mark.fresh
def test_tensors_of_torch_that_are_no_plain_memory_are_copied_or_refused(models):
    import tandem
    import torch

    method = tandem.Runtime.get().load_program(models.mlp.path).load_method("forward")
    (value,), wanted = models.mlp.case()
    plain = torch.from_numpy(value)
    odd = np.zeros(value.nbytes + 1, np.uint8)[1:].view(np.float32).reshape(value.shape)
    odd[:] = value
    for good in (plain, torch.from_numpy(odd), plain.t().contiguous().t(), torch.nn.Parameter(plain, False)):
        host.same(method.execute([good]), wanted)
    for bad in (
        plain.clone().requires_grad_(),
        torch.complex(torch.zeros_like(plain), -plain).conj().imag,  # of the other sign than its memory
        plain.to_sparse(),
        plain.to_mkldnn(),
        plain.to("meta"),
        torch.nested.nested_tensor([plain, plain]),
        torch._to_functional_tensor(plain.clone()),
        torch._efficientzerotensor(plain.shape),
        plain.double(),
        torch.zeros([1] * 17),
    ):
        with pytest.raises(tandem.InvalidArgumentError, match="input0"):
            method.execute([bad])
    torch.func.vmap(lambda row: pytest.raises(tandem.InvalidArgumentError, method.execute, [row]) and row)(plain[None])
    host.same(method.execute([plain]), wanted)


@pytest.fixture(scope="session")
def doubled(tmp_path_factory):
    """x + x of [n, 4] with n up to 8, in bfloat16, on ExecuTorch's kernels."""
    import torch
    from executorch.exir import to_edge

    class Double(torch.nn.Module):
        def forward(self, x):
            return x + x

    rows = torch.export.Dim("rows", min=1, max=8)
    exported = torch.export.export(Double(), (torch.zeros(3, 4, dtype=torch.bfloat16),), dynamic_shapes=({0: rows},))
    path = tmp_path_factory.mktemp("tensors") / "double.pte"
    path.write_bytes(to_edge(exported).to_executorch().buffer)
    return path


@pytest.mark.fresh
def test_bfloat16_runs(doubled):
    import tandem
    import torch

    method = tandem.Runtime.get().load_program(doubled).load_method("forward")
    narrow = dtype_of("bfloat16")
    value = np.arange(12).reshape(3, 4).astype(narrow)
    for given in (value, torch.arange(12).reshape(3, 4).to(torch.bfloat16), np.asfortranarray(value)):
        (found,) = method.execute([given])
        assert found.dtype == narrow and found.shape == (3, 4)
        assert np.array_equal(found.astype(np.float32), 2 * np.arange(12.0).reshape(3, 4))


@pytest.mark.fresh
def test_outputs_are_fresh_arrays(models, doubled):
    """Also those whose memory C lends: a later run changes none of them."""
    import tandem

    door = doors.open_door("own")
    (x,), _ = models.mlp.case()
    method = door.load(models.mlp).method
    first, kept = method.execute([x])[0], method.execute([x])[0].copy()
    method.execute([x + 1])
    assert first.tobytes() == kept.tobytes() and first.flags.writeable and first.flags.c_contiguous
    method = tandem.Runtime.get().load_program(doubled).load_method("forward")
    results = [method.execute([np.full((rows, 4), rows, dtype_of("bfloat16"))])[0] for rows in (3, 8, 1)]
    assert [(each.shape, float(each.max())) for each in results] == [((3, 4), 6), ((8, 4), 16), ((1, 4), 2)]


@pytest.mark.fresh
def test_outputs_go_where_out_says(models, doubled):
    import tandem
    import torch

    inputs, wanted = models.dtypes.case()
    method = doors.open_door("own").load(models.dtypes).method
    room = [np.empty_like(each) for each in wanted]
    room[1] = torch.empty(wanted[1].shape, dtype=torch.uint8)
    room[2] = None
    found = method.execute(inputs, out=room)
    assert all(one is other for one, other in zip(found, room, strict=True) if other is not None)
    host.same([np.asarray(each) for each in found], wanted)
    method = tandem.Runtime.get().load_program(doubled).load_method("forward")
    narrow = dtype_of("bfloat16")
    large, exact = np.zeros((8, 4), narrow), torch.zeros(3, 4, dtype=torch.bfloat16)
    (part,) = method.execute([np.ones((3, 4), narrow)], out=[large])
    assert part.shape == (3, 4) and np.shares_memory(part, large) and float(large[:3].min()) == 2 == float(part.min())
    assert not large[3:].any()
    assert method.execute([np.ones((3, 4), narrow)], out=[exact])[0] is exact and float(exact.min()) == 2


@pytest.mark.fresh
def test_the_written_part_of_out_keeps_the_memory(doubled):
    import gc
    import weakref

    import tandem
    import torch

    method = tandem.Runtime.get().load_program(doubled).load_method("forward")
    memory, narrow = np.zeros((8, 4), np.int16), dtype_of("bfloat16")
    room = torch.from_numpy(memory).view(torch.bfloat16)
    (part,) = method.execute([np.ones((3, 4), narrow)], out=[room])
    gone = weakref.ref(memory)
    del memory, room
    gc.collect()
    assert gone() is not None and float(part.min()) == 2
    del part
    gc.collect()
    assert gone() is None


@pytest.mark.fresh
def test_room_that_does_not_fit_is_refused_by_name(models):
    import tandem
    import torch

    (x,), wanted = models.mlp.case()
    method = doors.open_door("own").load(models.mlp).method
    frozen = np.empty((4, 10), np.float32)
    frozen.flags.writeable = False
    for room, error, match in [
        ([np.empty((4, 11), np.float32)], tandem.InvalidArgumentError, r"output0.*\(4, 11\)"),
        ([np.empty((4, 10), np.float64)], tandem.InvalidArgumentError, "output0.*float64"),
        ([np.empty((10, 4), np.float32).T], tandem.InvalidArgumentError, "output0.*contiguous"),
        ([torch.empty(10, 4).T], tandem.InvalidArgumentError, "output0.*contiguous"),
        ([frozen], tandem.InvalidArgumentError, "output0.*read-only"),
        ([np.ma.masked_array(wanted[0], wanted[0] > 0)], tandem.InvalidArgumentError, "output0.*mask"),
        ([[0.0]], TypeError, "output0.*list"),
        ([None, None], tandem.InvalidArgumentError, "2 items"),
    ]:
        with pytest.raises(error, match=match):
            method.execute([x], out=room)
        host.same(method.execute([x]), wanted)
    memory = np.zeros(4 * 64 + 40, np.float32)
    overlapping = memory[20:60].reshape(4, 10)
    with pytest.raises(tandem.InvalidArgumentError, match='"output0" overlaps input "input0"'):
        method.execute([memory[:256].reshape(4, 64)], out=[overlapping])
    inputs, wanted = models.dtypes.case()
    method = doors.open_door("own").load(models.dtypes).method
    room = np.zeros(wanted[1].size + 4, np.uint8)
    shared = [room[: wanted[1].size].reshape(wanted[1].shape), room[4:].view(np.int8).reshape(wanted[2].shape)]
    with pytest.raises(tandem.InvalidArgumentError, match='"output2" overlaps output "output1"'):
        method.execute(inputs, out=[None, *shared, *[None] * (len(wanted) - 3)])
    assert not room.any()
    host.same(method.execute(inputs), wanted)
    method = doors.open_door("own").load(models.mlp).method
    with pytest.raises(tandem.InvalidArgumentError, match="0 inputs were given.*has 1.*input0"):
        method.execute()
    for tensor in (x, torch.from_numpy(x), None, iter([x])):
        with pytest.raises(TypeError, match="inputs is one .*expected a list"):
            method.execute(tensor)
    with pytest.raises(TypeError, match="out is one ndarray: expected a list"):
        method.execute([x], out=np.empty((4, 10), np.float32))
