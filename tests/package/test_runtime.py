"""The two runtimes behind one face: what a program answers through the stock one, with tandem in front, and through
tandem's own. Where it can run depends on what it is made of: parts on ExecuTorch's kernels and XNNPACK run in both,
since tandem's runtime opens those libraries of the wheel when a method needs them.
"""

import copy
import gc
import inspect
import io
import mmap
import os
import pathlib
import pickle
import re
import resource
import subprocess
import sys
import weakref

import doors
import fresh
import host
import numpy as np
import pytest

KINDS = ("stock", "own")
OPENVINO = ("mlp", "mlp_other", "mlp_one_bit", "big", "chain", "convolution", "dtypes", "embedding", "multimethod")


@pytest.fixture(params=KINDS)
def kind(request):
    return request.param


def cases_of(data, name):
    """Method, input and output of each case that lies beside a program of tests/data/pte."""
    for path in sorted((data / "pte").glob(f"{name}.*.in0.npy")):
        yield path.name.split(".")[1], np.load(path), np.load(str(path).replace(".in0.", ".out0."))


# ---------------------------------------------------------------- both runtimes


@pytest.mark.fresh
@pytest.mark.parametrize("name", ["portable_mlp", "xnnpack_mlp", "xnnpack_mlp_dynamic"])
def test_programs_without_a_delegate_of_tandems_run(kind, data, name):
    door = doors.open_door(kind)
    load = door.load(data / "pte" / f"{name}.pte")
    cases = list(cases_of(data, name))
    assert cases
    for _method, value, wanted in cases:
        (found,) = load(value)
        assert found.shape == wanted.shape and found.dtype == wanted.dtype
        np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-6)
    assert door.tandem.stats().loads == 0


@pytest.mark.fresh
@pytest.mark.parametrize("name", ["demo_1mb", "demo_affine", "demo_dynamic", "demo_mixed", "demo_multimethod"])
def test_programs_of_the_demo_vendor_share_and_answer_alike(kind, data, name, demo_library):
    door = doors.open_door(kind)
    doors.register_demo(demo_library)
    cases = list(cases_of(data, name))
    assert cases
    for method, value, wanted in cases:
        one, two = (door.load(data / "pte" / f"{name}.pte", method) for _ in range(2))
        stats = door.tandem.stats()
        assert stats.loads == 2 * stats.engines > 0
        for load in one, two:
            (found,) = load(value)
            assert found.shape == wanted.shape and found.dtype == wanted.dtype
            np.testing.assert_allclose(found, wanted, rtol=1e-6)
        del one, two, load
        gc.collect()
        assert door.tandem.stats().engines == 0


@pytest.mark.fresh
@pytest.mark.parametrize("name", OPENVINO)
def test_a_second_load_shares_the_engine_and_answers_alike(kind, models, name):
    door = doors.open_door(kind)
    inputs, wanted = getattr(models, name).case()
    one, two = door.load(getattr(models, name)), door.load(getattr(models, name))
    stats = door.tandem.stats()
    assert stats.loads == 2 * stats.engines and stats.hits == stats.builds == stats.engines
    for load in one, two, one:
        host.same(load(*inputs), wanted)
    del one, load
    gc.collect()
    host.same(two(*inputs), wanted)
    assert door.tandem.stats().loads == stats.engines
    del two
    gc.collect()
    assert (door.tandem.stats().loads, door.tandem.stats().engines) == (0, 0)


@pytest.mark.fresh
def test_dynamic_outputs_have_their_real_shape(kind, models):
    """Field case 25: too large, of another rank or type, and good again, with a second load beside it."""
    door = doors.open_door(kind)
    one, two = door.load(models.mlp_dynamic), door.load(models.mlp_dynamic)
    for count in (4, 1, 32, 4):
        inputs, wanted = models.mlp_dynamic.case(f"forward{count}")
        host.same(one(*inputs), wanted)
        bad = [np.zeros((33, 64), np.float32), np.zeros((4, 63), np.float32), np.zeros((2, 2, 64), np.float32)]
        for value in [*bad, np.zeros((4, 64), np.float64)]:
            with pytest.raises(RuntimeError):
                one(value)
            host.same(two(*inputs), wanted)
    assert door.tandem.stats().engines == 1


@pytest.mark.fresh
def test_the_methods_of_a_program_are_named_and_described(kind, models):
    runtime = doors.open_door(kind).runtime
    program = runtime.load_program(models.multimethod.path)
    assert program.method_names == {"forward", "embed"}
    for meta in (program.metadata("embed"), program.load_method("embed").metadata):
        assert (meta.name(), meta.num_inputs(), meta.num_outputs()) == ("embed", 1, 1)
        into, out = meta.input_tensor_meta(0), meta.output_tensor_meta(0)
        assert (into.sizes(), into.dtype(), into.nbytes()) == ((4, 64), 6, 4 * 64 * 4)
        assert (out.sizes(), out.dtype(), out.nbytes()) == ((4, 32), 6, 4 * 32 * 4)
        for get in (meta.input_tensor_meta, meta.output_tensor_meta):
            with pytest.raises(IndexError):
                get(1)
    largest = runtime.load_program(models.mlp_dynamic.path).metadata("forward").input_tensor_meta(0)
    assert (largest.sizes(), largest.nbytes()) == ((32, 64), 32 * 64 * 4)


@pytest.mark.fresh
def test_a_program_comes_from_a_path_bytes_or_a_file(kind, models):
    runtime = doors.open_door(kind).runtime
    (value,), wanted = models.mlp.case()
    with open(models.mlp.path, "rb") as file:
        sources = [str(models.mlp.path), models.mlp.path, models.mlp.bytes, bytearray(models.mlp.bytes), file]
        for source in [*sources, io.BytesIO(models.mlp.bytes)]:
            program = runtime.load_program(source)
            assert program.method_names == {"forward"}
            method = program.load_method("forward")
            if kind == "own":
                host.same(method.execute([value]), wanted)


@pytest.mark.fresh
def test_constants_in_a_data_file_are_found(kind, models):
    runtime = doors.open_door(kind).runtime
    inputs, wanted = models.chain_external.case()
    data = models.folder / "_default_external_constant.ptd"
    for path in (data, str(data)):
        program = runtime.load_program(models.chain_external.path, data_path=path)
        host.same(doors.Loaded(kind, program, program.load_method("forward"))(*inputs), wanted)
    with pytest.raises(RuntimeError):
        runtime.load_program(models.chain_external.path).load_method("forward")


MAKE_PROGRAMS = """
import pathlib, sys, torch
from executorch.exir import ExecutorchBackendConfig, to_edge_transform_and_lower


class Constants(torch.nn.Module):
    def forward(self, x, n: int, flag: bool, factor: float, nothing):
        return x * n + factor


class Buffer(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("total", torch.zeros(3, dtype=torch.int32))

    def forward(self, x):
        self.total.add_(x)
        return self.total * 2


folder = pathlib.Path(sys.argv[1])
for name, module, arguments in [
    ("constants", Constants(), (torch.ones(2, 4), 5, True, 2.5, None)),
    ("buffer", Buffer(), (torch.ones(3, dtype=torch.int32),)),
]:
    edge = to_edge_transform_and_lower(torch.export.export(module, arguments))
    program = edge.to_executorch(ExecutorchBackendConfig(emit_mutable_buffer_names=True))
    (folder / f"{name}.pte").write_bytes(program.buffer)
"""


@pytest.fixture(scope="session")
def programs(tmp_path_factory):
    """A folder with programs that run on ExecuTorch's kernels.

    constants.pte has inputs that are no tensors, and makes of x, 5, True, 2.5, None x * 5 + 2.5. buffer.pte adds what
    it is given to its buffer "total", and gives its double.
    """
    folder = tmp_path_factory.mktemp("programs")
    done = subprocess.run([sys.executable, "-c", MAKE_PROGRAMS, folder], capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr[-4000:]
    return folder


@pytest.mark.fresh
def test_what_a_program_keeps_by_name_is_told(kind, programs, data):
    door = doors.open_door(kind)
    program = door.runtime.load_program(programs / "buffer.pte")
    method = program.load_method("forward")
    for meta in (program.metadata("forward"), method.metadata):
        assert (meta.num_inputs(), meta.num_outputs(), meta.num_attributes()) == (1, 1, 1)
        total = meta.attribute_tensor_meta(0)
        assert (total.sizes(), total.dtype(), total.nbytes()) == ((3,), 3, 12)
        with pytest.raises(IndexError):
            meta.attribute_tensor_meta(1)
    load = doors.Loaded(kind, program, method)
    for turn in (1, 2):
        host.same(load(np.full(3, 5, np.int32)), [np.full(3, turn * 10, np.int32)])
    meta = door.runtime.load_program(data / "linear_external.pte").metadata("forward")
    infos = [meta.attribute_tensor_meta(index) for index in range(meta.num_attributes())]
    assert [(info.sizes(), info.dtype(), info.nbytes()) for info in infos] == [((3, 4), 6, 48), ((3,), 6, 12)]
    if kind == "own":
        assert [info.name() for info in (total, *infos)] == ["total", "linear.weight", "linear.bias"]
        assert "linear.bias" in repr(meta)
    assert door.runtime.load_program(data / "linear.pte").metadata("forward").num_attributes() == 0


@pytest.mark.fresh
def test_inputs_that_are_no_tensors_are_given_as_the_program_has_them(kind, programs):
    method = doors.open_door(kind).load(programs / "constants.pte").method
    x = np.arange(8, dtype=np.float32).reshape(2, 4)
    if kind == "stock":
        import torch

        given = torch.from_numpy(x)
    else:
        given = x
    for factor in (2.5, 2.50001):
        host.same([np.asarray(method.execute([given, 5, True, factor, None])[0])], [x * 5 + np.float32(2.5)])
    for wrong, match in [
        ([given, 6, True, 2.5, None], "input 1 of .*forward.* is 6: .*exported for 5 "),
        ([given, 5.0, True, 2.5, None], "input 1 .* is 5.0: "),
        ([given, True, True, 2.5, None], "input 1 .* is True: "),
        ([given, given, True, 2.5, None], "input 1 .* is a ndarray: "),
        ([given, 5, False, 2.5, None], "input 2 .* is False: .*exported for True "),
        ([given, 5, 1, 2.5, None], "input 2 .* is 1: "),
        ([given, 5, True, 2.6, None], "input 3 .* is 2.6: .*exported for 2.5 "),
        ([given, 5, True, 2.5, 0], "input 4 .* is 0: .*exported for None "),
        ([7, 5, True, 2.5, None], "int 7"),
        ([given, 5, True, 2.5], "4 inputs were given: .* 1 that are tensors .* 4 that are none"),
    ]:
        with pytest.raises(RuntimeError, match=match if kind == "own" else "failed with error"):
            method.execute(wrong)
    host.same([np.asarray(method.execute([given, 5, True, 2.5, None])[0])], [x * 5 + np.float32(2.5)])
    if kind == "own":
        host.same(method.execute([x]), [x * 5 + np.float32(2.5)])


@pytest.mark.fresh
def test_the_registries_tell_what_is_there(kind, data):
    runtime = doors.open_door(kind).runtime
    assert "OpenvinoBackend" in runtime.backend_registry.registered_backend_names
    assert runtime.backend_registry.is_available("OpenvinoBackend")
    assert not runtime.backend_registry.is_available("NoBackend")
    if kind == "own":
        runtime.load_program(data / "pte/portable_mlp.pte").load_method("forward")
    assert "aten::addmm.out" in runtime.operator_registry.operator_names


# ---------------------------------------------------------------- against each other


def answer(kind, path, method, inputs):
    return doors.open_door(kind).load(path, method)(*inputs)


@pytest.mark.parametrize("name", OPENVINO)
def test_both_runtimes_answer_what_openvino_itself_answers(models, name):
    """Each in a process of its own, bit for bit."""
    model = getattr(models, name)
    inputs, wanted = model.case()
    found = {kind: fresh.run(answer, kind, model.path, "forward", inputs).good() for kind in KINDS}
    host.same(found["stock"], wanted)
    host.same(found["own"], wanted)


@pytest.mark.fresh
def test_both_runtimes_of_one_process_share_an_engine(models):
    inputs, wanted = models.mlp.case()
    own, stock = doors.open_door("own"), doors.open_door("stock")
    loads = [own.load(models.mlp), stock.load(models.mlp), own.load(models.mlp)]
    assert (own.tandem.stats().engines, own.tandem.stats().loads) == (1, 3)
    for load in loads:
        host.same(load(*inputs), wanted)


def describe_public(runtime, program):
    """The public names of a runtime's module and objects: the parameters of each, None where Python cannot tell."""
    meta = program.metadata("forward")
    classes = vars(sys.modules[type(runtime).__module__])
    verification = classes["Verification"]
    found = {name: None for name, value in classes.items() if isinstance(value, type) and in_package(value)}
    things = [runtime, runtime.backend_registry, runtime.operator_registry, program, program.load_method("forward")]
    owners = [(type(thing).__name__, thing) for thing in (*things, meta, meta.input_tensor_meta(0))]
    for owner, thing in [*owners, ("Verification", verification), ("Verification", verification.Minimal)]:
        for name in (name for name in dir(thing) if not name.startswith("_")):
            value = getattr(thing, name)
            is_python = inspect.isfunction(getattr(value, "__func__", value))
            found[f"{owner}.{name}"] = list(inspect.signature(value).parameters) if is_python else None
    return found


def in_package(value):
    return value.__module__.partition(".")[0] in ("executorch", "tandem")


@pytest.mark.fresh
def test_every_public_name_of_the_stock_runtime_is_here_or_explained(data):
    """With its parameters; docs/python.md has the rest in a table, `name`, and why."""
    stock, mine = (
        describe_public(door.runtime, door.runtime.load_program(data / "pte/portable_mlp.pte"))
        for door in (doors.open_door("stock"), doors.open_door("own"))
    )
    assert {"Runtime.backend_registry", "Program.load_method", "MethodMeta.num_inputs", "TensorInfo.sizes"} < set(stock)
    explained = re.findall(
        r"^\| `([\w.]+)` \| .{20,} \|$",
        pathlib.Path(__file__).parents[2].joinpath("docs/python.md").read_text(),
        re.MULTILINE,
    )
    assert sorted(set(stock) - set(mine)) == sorted(explained)
    for name in set(stock) & set(mine):
        if stock[name] is not None and mine[name] is not None:
            assert mine[name][: len(stock[name])] == stock[name], name


# ---------------------------------------------------------------- the own runtime


def own():
    import tandem

    return tandem


def test_needs_no_torch(models, tmp_path):
    """The test's process has torch loaded; another interpreter does not."""
    inputs, wanted = models.mlp.case()
    script = (
        "import sys; sys.modules['torch'] = None; import numpy, tandem\n"
        f"method = tandem.Runtime.get().load_program({str(models.mlp.path)!r}).load_method('forward')\n"
        "print(method.execute([numpy.load(sys.argv[1])])[0].tobytes().hex())"
    )
    path = tmp_path / "x.npy"
    np.save(path, inputs[0])
    done = subprocess.run([sys.executable, "-c", script, path], capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == wanted[0].tobytes().hex()


@pytest.mark.fresh
def test_each_load_method_is_a_load_of_its_own(models):
    """Where executorch.runtime caches: two arms of one program must not share state."""
    tandem = own()
    (x,), steps = models.state.case()
    program = tandem.Runtime.get().load_program(models.state.path)
    one, two = program.load_method("forward"), program.load_method("forward")
    assert one is not two
    assert [len(method.info) for method in (one, two)] == [1, 1]
    assert [method.info[0].shared for method in (one, two)] == [False, True]
    assert one.info[0].engine_id == two.info[0].engine_id and one.info[0].users == 2
    for step in range(2):
        host.same(one.execute([x]), [steps[step]])
    host.same(two(x), [steps[0]])
    one.reset()
    host.same(one(x), [steps[0]])
    host.same(two(x), [steps[1]])


@pytest.mark.fresh
def test_options_belong_to_the_load(models):
    tandem = own()
    program = tandem.Runtime.get().load_program(models.mlp.path)
    shared, private = program.load_method("forward"), program.load_method("forward", use_shared_engines=False)
    threads = program.load_method("forward", num_threads=1)
    assert tandem.stats().engines == 3
    assert [method.info[0].users for method in (shared, private, threads)] == [1, 1, 1]
    assert "num_threads=1" in threads.info[0].options
    for wrong in ({"no_such": 1}, {"num_threads": "many"}, {"num_threads": None}):
        with pytest.raises(tandem.BadOptionError, match=next(iter(wrong))):
            program.load_method("forward", **wrong)
    assert tandem.stats().engines == 3


@pytest.mark.fresh
def test_either_goes_first_the_program_or_its_methods(models):
    tandem = own()
    inputs, wanted = models.embedding.case()
    for source in (models.embedding.path, models.embedding.bytes):
        program = tandem.Runtime.get().load_program(source)
        method = program.load_method("forward")
        gone = weakref.ref(program)
        del program, source
        gc.collect()
        assert gone() is None
        host.same(method.execute(inputs), wanted)
        del method
        assert tandem.stats().loads == 0


@pytest.mark.fresh
def test_with_closes_and_what_is_closed_says_so(models):
    tandem = own()
    inputs, wanted = models.mlp.case()
    with tandem.Runtime() as runtime, runtime.load_program(models.mlp.path) as program:
        with program.load_method("forward") as method:
            host.same(method.execute(inputs), wanted)
            assert tandem.stats().loads == 1
        assert method.closed and tandem.stats().loads == 0
        kept = program.load_method("forward")
        other = runtime.load_program(models.mlp.path)
    assert program.closed and other.closed
    host.same(kept.execute(inputs), wanted)
    for use in (
        lambda: method.execute(inputs), lambda: method.info, method.reset, method.__enter__,
        lambda: program.load_method("forward"), lambda: program.metadata("forward"),
    ):  # fmt: skip
        with pytest.raises(tandem.InvalidStateError, match="closed"):
            use()
    method.close()
    assert "closed" in repr(method) and "forward" in repr(method)


@pytest.mark.fresh
def test_a_closed_method_is_freed_though_failures_of_its_runs_are_kept(models):
    tandem = own()
    failures = []
    for value in (np.zeros((33, 64), np.float32), np.zeros((4, 64), np.float64)):  # refused by C, and by Python
        method = tandem.Runtime.get().load_program(models.mlp_dynamic.path).load_method("forward")
        with pytest.raises(tandem.Error) as caught:
            method.execute([value])
        failures.append(caught.value)
        method.close()
        assert tandem.stats().loads == 0


@pytest.mark.fresh
def test_nothing_can_be_copied_or_pickled(models):
    tandem = own()
    runtime = tandem.Runtime.get()
    program = runtime.load_program(models.mlp.path)
    for thing in (runtime, program, program.load_method("forward")):
        for copy_it in (pickle.dumps, copy.copy, copy.deepcopy):
            with pytest.raises(TypeError, match="cannot be copied or pickled"):
                copy_it(thing)


def use_inherited(tandem, program, method, inputs):
    for use in (lambda: method.execute(inputs), lambda: program.load_method("forward"), lambda: method.info):
        with pytest.raises(tandem.DeviceLostError, match="forked"):
            use()
    method.close()


@pytest.mark.fresh
def test_a_fork_gets_a_clear_error_and_hurts_nobody(models):
    """Field case 27: loaded before the fork; the parent goes on, the child's copies free nothing."""
    tandem = own()
    inputs, wanted = models.mlp.case()
    program = tandem.Runtime.get().load_program(models.mlp.path)
    method = program.load_method("forward")
    with method._lock:  # as if another thread ran it: that thread is not there in the child
        assert fresh.fork_inside(lambda: use_inherited(tandem, program, method, inputs)) is True
    host.same(method.execute(inputs), wanted)
    assert tandem.stats().loads == 1


def load_in_child(path, inputs, wanted):
    host.same(own().Runtime.get().load_program(path).load_method("forward").execute(inputs), wanted)


@pytest.mark.fresh
def test_a_child_loads_what_its_parent_did_not(models):
    """Field case 27: imported, forked, loaded."""
    own()
    inputs, wanted = models.mlp.case()
    assert fresh.fork_inside(lambda: load_in_child(models.mlp.path, inputs, wanted)) is True


@pytest.mark.fresh
def test_a_forked_child_of_a_cpu_method_without_tandem_loads_anew(data):
    tandem = own()
    path = data / "pte/portable_mlp.pte"
    _method, value, wanted = next(cases_of(data, "portable_mlp"))
    method = tandem.Runtime.get().load_program(path).load_method("forward")

    def child():
        with pytest.raises(tandem.DeviceLostError):
            method.execute([value])
        (found,) = tandem.Runtime.get().load_program(path).load_method("forward").execute([value])
        np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-6)

    assert fresh.fork_inside(child) is True


@pytest.mark.fresh
def test_threads_that_run_one_method_get_their_own_answers(models):
    """Field case 07."""
    method = own().Runtime.get().load_program(models.mlp_dynamic.path).load_method("forward")
    cases = [models.mlp_dynamic.case(f"forward{count}") for count in (1, 4, 32)]

    def work(index):
        inputs, wanted = cases[index % 3]
        for _ in range(300):
            host.same(method.execute(inputs), wanted)

    doors.in_threads(*(lambda index=index: work(index) for index in range(8)))


@pytest.mark.fresh
def test_a_method_is_closed_while_another_thread_runs_it(models):
    tandem = own()
    inputs, wanted = models.mlp.case()
    program = tandem.Runtime.get().load_program(models.mlp.path)
    for _ in range(20):
        method = program.load_method("forward")
        started = doors.threading.Event()

        def run(method=method, started=started):
            try:
                while True:
                    host.same(method.execute(inputs), wanted)
                    started.set()
            except tandem.InvalidStateError:
                return True

        def close(method=method, started=started):
            assert started.wait(20)
            method.close()
            return True

        assert doors.in_threads(run, close) == [True, True]
        assert tandem.stats().loads == 0


@pytest.mark.fresh
def test_bytes_that_can_change_are_copied_and_others_stay_where_they_are(models):
    tandem = own()
    inputs, wanted = models.embedding.case()
    content = models.embedding.bytes
    changing = bytearray(content)
    shifted = memoryview(b"x" + content)[1:]
    with open(models.embedding.path, "rb") as file:
        mapping = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    array = np.frombuffer(content, np.uint8)
    frozen = memoryview(changing).toreadonly()  # for those who have it, not for its owner
    programs = []
    for source in (changing, frozen, shifted, mapping, array, memoryview(content)[::-1][::-1]):
        programs.append(tandem.Runtime.get().load_program(source))
    changing[:] = bytes(len(changing))
    methods = [program.load_method("forward") for program in programs]
    with pytest.raises(BufferError):
        mapping.close()  # lent to the program
    for method in methods:
        host.same(method.execute(inputs), wanted)


@pytest.mark.fresh
def test_errors_say_what_where_and_what_was_expected(models, tmp_path):
    tandem = own()
    runtime = tandem.Runtime.get()
    bad = tmp_path / "bad.pte"
    bad.write_bytes(b"no program" * 100)
    program = runtime.load_program(models.mlp.path)
    text = io.StringIO()
    for error, match, call in [
        (tandem.NotFoundError, "missing.pte", lambda: runtime.load_program("missing.pte")),
        (tandem.InvalidArgumentError, "the path is empty", lambda: runtime.load_program("")),
        (tandem.BadProgramError, "bad.pte", lambda: runtime.load_program(bad)),
        (tandem.BadProgramError, "no bytes", lambda: runtime.load_program(b"")),
        (tandem.InvalidArgumentError, "NUL", lambda: runtime.load_program("a\0b")),
        (tandem.InvalidArgumentError, "path.*cannot be encoded", lambda: runtime.load_program("\ud800")),
        (
            tandem.NotFoundError,
            "missing.pte",
            lambda: runtime.load_program(models.mlp.path, data_path=[b"missing.pte"]),
        ),
        (TypeError, "method is of type int", lambda: program.load_method(7)),
        (tandem.NotFoundError, "nothing.ptd", lambda: runtime.load_program(models.mlp.path, data_path="nothing.ptd")),
        (tandem.UnsupportedError, "ETDump", lambda: runtime.load_program(models.mlp.path, enable_etdump=True)),
        (TypeError, "int", lambda: runtime.load_program(7)),
        (TypeError, 'as text: open it with mode "rb"', lambda: runtime.load_program(text)),
        (tandem.NotFoundError, "backward.*forward", lambda: program.load_method("backward")),
        (tandem.NotFoundError, "backward", lambda: program.metadata("backward")),
    ]:
        with pytest.raises(error, match=match) as caught:
            call()
        assert "\n" not in str(caught.value)
        if issubclass(error, tandem.Error):
            assert caught.value.status == "".join(
                ("_" if letter.isupper() and place else "") + letter.upper()
                for place, letter in enumerate(error.__name__.removesuffix("Error"))
            )


@pytest.mark.fresh
def test_a_program_that_cannot_be_opened_is_told_with_the_reason_in_the_error_alone(models, capfd):
    tandem = own()
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    free = os.dup(0)
    os.close(free)
    resource.setrlimit(resource.RLIMIT_NOFILE, (free, limits[1]))
    try:
        with pytest.raises(tandem.NotFoundError, match="cannot be read: .*Too many open files"):
            tandem.Runtime.get().load_program(models.mlp.path)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    assert capfd.readouterr().err == ""


@pytest.mark.fresh
def test_every_status_has_its_class():
    """The library's table names the classes."""
    own()
    from tandem import errors
    from tandem._native import ffi, lib

    names = [ffi.string(name).decode() for name in lib.tandem_python_classes]
    assert names[0] == "None" and len(names) == len(set(names)) == 13
    classes = [getattr(errors, name) for name in names[1:]]
    assert {each for each in vars(errors).values() if isinstance(each, type) and issubclass(each, errors.Error)} == {
        errors.Error, *classes,
    }  # fmt: skip
    for number, each in enumerate(classes, 1):
        assert issubclass(each, RuntimeError)
        assert each.status == ffi.string(lib.tandem_status_name(number)).decode()
        with pytest.raises(each):
            errors.check(number)


SITE = next(each for each in sys.path if pathlib.Path(each, "tandem/_native.abi3.so").exists())


def import_with(*folders):
    """How `import tandem` ends in an interpreter that has these folders and its own library alone."""
    script = f"import sys; sys.path[:0] = {[str(each) for each in folders]!r}; import tandem"
    done = subprocess.run([sys.executable, "-ISc", script], capture_output=True, text=True, timeout=200)
    return done.returncode, done.stderr.strip().splitlines()[-1:]


def test_a_missing_or_wrong_executorch_is_refused_by_name(tmp_path):
    code, (line,) = import_with(SITE)
    assert code == 1 and line.startswith("ImportError: tandem needs ExecuTorch 1.5.x")
    assert "not installed" in line and line.endswith("pip install executorch==1.5.1")
    package = tmp_path / "executorch"
    (package / "lib").mkdir(parents=True)
    code, (line,) = import_with(SITE, tmp_path)
    assert code == 1 and f"{package} has no lib/libexecutorch.so" in line
    (package / "lib/libexecutorch.so").touch()
    for text, found in (('__version__ = "1.4.0+cpu"', "1.4.0+cpu"), ("", "unknown version")):
        (package / "version.py").write_text(text)
        code, (line,) = import_with(SITE, tmp_path)
        assert code == 1 and found in line and str(package) in line and "1.5.x" in line


def test_vendors_are_told_where_python_looks(tmp_path):
    """tests/unit/test_search.c has them look there, before they look anywhere else."""
    packages = pathlib.Path(np.__file__).parents[1]
    script = f"import sys; sys.path[:0] = {[str(SITE), str(tmp_path), '']!r}; sys.path.append({str(packages)!r})\n"
    script += "import os, tandem; print(os.environ['TANDEM_PYTHON_PATH'])"
    done = subprocess.run([sys.executable, "-ISc", script], capture_output=True, text=True, timeout=200)
    folders = done.stdout.strip().split(":")
    assert folders[:2] == [str(SITE), str(tmp_path)] and folders[-1] == str(packages), done.stderr
    assert "" not in folders


# ---------------------------------------------------------------- what it costs


def time_both(path, value, rounds):
    """Seconds of this thread for a run through either runtime, in alternating rounds."""
    import time

    import torch

    stock, mine = doors.open_door("stock").load(path).method, doors.open_door("own").load(path).method
    tensor = torch.from_numpy(value)
    ways = [("own", mine.execute, [value]), ("own, torch", mine.execute, [tensor]), ("stock", stock.execute, [tensor])]
    seconds = {name: [] for name, _, _ in ways}
    for turn in range(rounds):
        for name, run, inputs in ways if turn % 2 else reversed(ways):
            begin = time.thread_time()
            for _ in range(500):
                run(inputs)
            seconds[name].append((time.thread_time() - begin) / 500)
    return seconds


def test_a_run_costs_no_more_than_through_the_stock_runtime(models, figures):
    """A tiny program, one thread, so that what is around the inference counts; CPU time of the thread."""
    (value,), _ = models.mlp.case()
    environment = {"TANDEM_OPT_NUM_THREADS": "1"}
    seconds = fresh.run(time_both, models.mlp.path, value, 21, environment=environment, timeout=100).good()
    stock = np.array(seconds["stock"])
    for name in ("own", "own, torch"):
        ratio = np.array(seconds[name]) / stock
        low, middle, high = np.percentile(ratio, [25, 50, 75])
        figures.append(
            f"one run of a tiny MLP, {name} over stock: {middle:.2f} ({low:.2f} .. {high:.2f}), "
            f"stock {np.median(stock) * 1e6:.1f} us"
        )
        assert middle < 1.2, (name, ratio)
