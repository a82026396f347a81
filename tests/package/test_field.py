"""Field cases through Python: 11 other weights, 23 layouts, 25 bounds, 27 fork and exit; 07 is in test_threads.py."""

import subprocess
import sys
import threading

import doors
import fresh
import host
import numpy as np
import pytest

both = pytest.mark.parametrize("kind", ["own", "stock"])


@both
@pytest.mark.parametrize("names", [("mlp", "mlp_other"), ("mlp", "mlp_one_bit"), ("mlp_one_bit", "mlp")])
@pytest.mark.fresh
def test_11_programs_that_differ_in_weights_alone_do_not_share(kind, names, models):
    door = doors.open_door(kind)
    cases = [(getattr(models, name), *getattr(models, name).case()) for name in names]
    assert len({model.path.stat().st_size for model, _, _ in cases}) == 1
    loads = [door.load(model) for model, _, _ in cases]
    assert door.tandem.stats().engines == 2
    for _ in range(3):
        for load, (_, inputs, wanted) in zip(loads, cases, strict=True):
            host.same(load(*inputs), wanted)
    assert cases[0][2][0].tobytes() != cases[1][2][0].tobytes()


@pytest.mark.fresh
def test_23_layouts_give_the_right_numbers_or_name_the_input(models):
    door = doors.open_door("own")
    (image,), wanted = models.convolution.case()
    load = door.load(models.convolution)
    wide = np.repeat(image, 2, axis=3)
    row = image[:, :, :, :1]
    expanded = np.broadcast_to(row, image.shape)
    layouts = {
        "contiguous": image,
        "channels last": np.ascontiguousarray(image.transpose(0, 2, 3, 1)).transpose(0, 3, 1, 2),
        "permuted": np.ascontiguousarray(image.transpose(3, 2, 1, 0)).transpose(3, 2, 1, 0),
        "sliced": wide[..., ::2],
        "at an offset": np.concatenate([image[:, :1], image], 1)[:, 1:],
        "backwards": np.ascontiguousarray(image[..., ::-1])[..., ::-1],
    }
    for name, value in layouts.items():
        np.testing.assert_array_equal(value, image)
        try:
            host.same(load(value), wanted)
        except door.tandem.InvalidArgumentError as refusal:
            assert name != "contiguous" and "input 0" in str(refusal) and "contiguous" in str(refusal), refusal
    good = load(np.ascontiguousarray(expanded))
    host.same(load(expanded), good)
    assert good[0].tobytes() != wanted[0].tobytes()


@both
@pytest.mark.fresh
def test_25_outside_the_bounds_is_refused_and_inside_again_is_right(kind, models):
    door = doors.open_door(kind)
    one, other = door.load(models.mlp_dynamic), door.load(models.mlp_dynamic)
    assert door.tandem.stats().engines == 1
    cases = [models.mlp_dynamic.case(f"forward{count}") for count in (1, 4, 32)]
    refused = door.tandem.InvalidArgumentError if kind == "own" else RuntimeError
    for shape, facts in [
        ((33, 64), ("33", "32")),
        ((4, 63), ("63", "64")),
        ((4, 1, 64), ("rank 3",)),
        ((64,), ("rank 1",)),
    ]:
        value = np.ones(shape, np.float32)
        with pytest.raises(refused) as raised:
            one(value)
        if kind == "own":
            assert all(fact in str(raised.value) for fact in facts), raised.value
        assert (value == 1).all()
        for load in (other, one):
            for inputs, wanted in cases:
                host.same(load(*inputs), wanted)


def load_in_a_child(kind, model):
    import tandem

    inputs, wanted = model.case()

    def load():
        door = doors.open_door(kind)
        host.same(door.load(model)(*inputs), wanted)

    first = fresh.fork_inside(load, timeout=30)
    with tandem.options(trust_domain="parent"):  # a task's options are inherited
        second = fresh.fork_inside(lambda: None if tandem.get_option("trust_domain") == "parent" else 1 / 0)
    return first, second


@both
def test_27a_a_child_of_a_process_that_only_imported_loads_and_runs(kind, models):
    outcome = fresh.run(load_in_a_child, kind, models.mlp)
    assert outcome.good() == (True, True), outcome.errors


def run_in_a_child(kind, model, other):
    door = doors.open_door(kind)
    inputs, wanted = model.case()
    load = door.load(model)
    host.same(load(*inputs), wanted)

    def run():
        try:
            host.same(load(*inputs), wanted)
        except RuntimeError as error:
            assert kind == "stock" or (type(error) is door.tandem.DeviceLostError and "fork" in str(error)), error

    def load_anew():
        try:
            host.same(door.load(other)(*inputs), other.case()[1])
        except RuntimeError as error:
            assert kind == "stock" or "fork" in str(error), error

    ends = fresh.fork_inside(run, timeout=5), fresh.fork_inside(load_anew, timeout=5)
    for _ in range(3):
        host.same(load(*inputs), wanted)
        host.same(door.load(model)(*inputs), wanted)
    assert door.tandem.stats().engines == 1
    return ends


@both
def test_27b_a_child_gets_a_clear_error_in_time_and_its_parent_goes_on(kind, models):
    outcome = fresh.run(run_in_a_child, kind, models.mlp, models.mlp_other)
    assert outcome.good() == (True, True), outcome.errors
    lines = [line for line in outcome.errors.splitlines() if line.startswith("tandem:")]
    assert all("forked" in line for line in lines), outcome.errors


def fork_during_calls(fake_library, fake_programs):
    door, fake = doors.open_door("own"), doors.Fake(fake_library)
    from tandem._native import ffi, lib

    x, wanted = np.load(fake_programs / "one.npy")
    load, path = door.load(fake_programs / "one.pte"), fake_programs / "two.pte"

    def refused(action):
        try:
            action()
        except door.tandem.DeviceLostError as error:
            assert "forked" in str(error), error
        else:
            raise AssertionError("not refused")

    def child():
        refused(lambda: load(x))
        refused(lambda: door.load(path))
        error = ffi.new("struct tandem_error *")  # a C program has no Python in front
        assert lib.tandem_method_reset(load.method._handle, error) == lib.TANDEM_DEVICE_LOST
        assert b"forked" in ffi.string(error.message)
        assert door.tandem.stats().engines >= 1

    ends = []
    for entry, action in [
        (doors.PARSE, lambda: door.load(path)),
        (doors.BUILD, lambda: door.load(path)),
        (doors.CONTEXT_CREATE, lambda: door.load(path)),
        (doors.RUN, lambda: load(x)),
    ]:
        fake.close_gate(entry)
        thread = threading.Thread(target=action)
        thread.start()
        fake.wait_inside(entry, 1)
        ends.append(fresh.fork_inside(child, timeout=10))
        fake.open_gate(entry)
        thread.join()
    ends.append(fresh.fork_inside(lambda: host.same(door.load(path)(x), door.load(path)(x)), timeout=10))
    host.same(load(x), [wanted])
    return ends


def test_27d_a_child_forked_during_another_thread_s_call_gets_a_clear_error(fake_library, fake_programs):
    outcome = fresh.run(fork_during_calls, fake_library, fake_programs)
    assert outcome.good() == [True] * 5, outcome.errors


def fork_while_loading(kind, model):
    door, stop = doors.open_door(kind), threading.Event()

    def load():
        while not stop.is_set():
            door.load(model)

    def child():
        try:
            door.load(model)
        except RuntimeError as error:
            assert kind == "stock" or "forked" in str(error), error

    loaders = [threading.Thread(target=load) for _ in range(2)]
    for thread in loaders:
        thread.start()
    ends = [fresh.fork_inside(child, timeout=10) for _ in range(30)]
    stop.set()
    for thread in loaders:
        thread.join()
    return ends


@both
def test_27d_children_forked_while_others_load_never_hang(kind, models):
    outcome = fresh.run(fork_while_loading, kind, models.mlp, timeout=120)
    assert outcome.good() == [True] * 30, outcome.errors


ENDING = """
import sys
sys.path[:0] = sys.argv[3:]
import doors, numpy as np
door = doors.open_door(sys.argv[1])
print("READY", file=sys.stderr, flush=True)
loads = [door.load(sys.argv[2]) for _ in range(2)]
for load in loads:
    load(np.ones((4, 64), np.float32))
"""
AT_EXIT = """
import atexit
def unload():
    global load
    loads.clear()
    load = None
    assert door.tandem.stats().engines == 0
    print("unloaded", file=sys.stderr)
atexit.register(unload)
"""


@both
@pytest.mark.parametrize(("tail", "said"), [("", ""), (AT_EXIT, "unloaded\n")], ids=["loaded", "unloading-at-exit"])
def test_27ce_a_process_ends_cleanly(kind, tail, said, models):
    folders = [str(each) for each in (doors.__file__.rpartition("/")[0], host.__file__.rpartition("/")[0])]
    done = subprocess.run(
        [sys.executable, "-c", ENDING + tail, kind, models.mlp.path, *folders],
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert (done.returncode, done.stderr.partition("READY\n")[2]) == (0, said)
