"""Threads: what each runtime lets run at once, and that no order of loads, waits and callbacks hangs or crashes."""

import faulthandler
import os
import statistics
import sys
import threading
import time

import doors
import numpy as np
import pytest

ROUNDS = int(os.environ.get("TANDEM_THREAD_ROUNDS", "2"))  # of the thousand loads


def seconds(*functions):
    """From the start of the first to the end of the last, the threads being there already."""
    begin = time.perf_counter()
    doors.in_threads(*functions)
    return time.perf_counter() - begin


def compare(figures, what, own, stock, bound, rounds):
    """Alternating rounds, the ratio of the medians."""
    own(), stock()
    pairs = [(own(), stock()) for _ in range(rounds)]
    mine, theirs = (statistics.median(column) for column in zip(*pairs))
    figures(f"{what}: own {mine:.3f} s, stock {theirs:.3f} s, ratio {mine / theirs:.2f}, at most {bound}")
    assert mine / theirs <= bound, pairs


def two_waits(fake_library, fake_programs):
    stock, own, fake = doors.open_door("stock"), doors.open_door("own"), doors.Fake(fake_library)
    x, wanted = np.load(fake_programs / "one.npy")
    arms = {door.kind: [door.load(fake_programs / "one.pte") for _ in range(2)] for door in (stock, own)}
    fake.delay(doors.RUN, 400)
    lines = []

    def both(kind):
        return lambda: seconds(*[lambda arm=arm: np.testing.assert_array_equal(arm(x)[0], wanted) for arm in arms[kind]])

    compare(lines.append, "two threads, 400 ms of waiting each", both("own"), both("stock"), 0.55, rounds=3)
    assert own.tandem.stats().engines == 1
    return lines


def two_computations(model):
    stock, own = doors.open_door("stock"), doors.open_door("own")
    for name, value in (("num_threads", 1), ("cpu_pinning", False)):
        own.tandem.set_option(name, value, backend="openvino")
    inputs, wanted = model.case()
    arms = {door.kind: [door.load(model) for _ in range(2)] for door in (stock, own)}
    for arm in (*arms["stock"], *arms["own"]):
        for found, good in zip(arm(*inputs), wanted):
            np.testing.assert_allclose(found, good, rtol=1e-4, atol=1e-5)
    begin = time.perf_counter()
    arms["own"][0](*inputs)
    repeats = max(1, round(0.4 / (time.perf_counter() - begin)))
    lines = []

    def work(arm):
        for _ in range(repeats):
            arm(*inputs)

    def both(kind):
        return lambda: seconds(*[lambda arm=arm: work(arm) for arm in arms[kind]])

    compare(lines.append, f"two threads, OpenVINO, {repeats} runs each", both("own"), both("stock"), 0.65, rounds=7)
    return lines


def test_two_threads_wait_at_once_in_the_own_runtime(fake_library, fake_programs, figures):
    import fresh

    figures += fresh.run(two_waits, fake_library, fake_programs).good()


def test_two_threads_compute_at_once_in_the_own_runtime(models, figures):
    import fresh

    if len(os.sched_getaffinity(0)) < 2:
        pytest.skip("needs two processors")
    figures += fresh.run(two_computations, models.big, timeout=120).good()


def load_a_thousand(kinds, fake_library, fake_programs):
    """8 threads, 125 loads each, of two programs with other options now and then; a vendor that logs from threads of
    its own too; and a function of Python that takes the lines, allocates and now and then loads."""
    faulthandler.dump_traceback_later(100, exit=True)
    sys.setswitchinterval(1e-4)
    stock, own, fake = doors.open_door("stock"), doors.open_door("own"), doors.Fake(fake_library)
    tandem, lines, inner = own.tandem, [], []
    cases = {name: np.load(fake_programs / f"{name}.npy") for name in ("one", "two")}

    def listen(level, line):
        lines.append(line)
        if len(lines) % 50 == 0:
            inner.append(own.load(fake_programs / "two.pte"))

    tandem.on_log(listen)
    fake.say(doors.BUILD, tandem.LogLevel.WARNING, "building", 3)
    fake.say(doors.CONTEXT_CREATE, tandem.LogLevel.WARNING, "a context")
    fake.say(doors.BUILD, tandem.LogLevel.WARNING, "from afar", 2, own_thread=True)
    fake.delay(doors.BUILD, 1)

    def work(index):
        door, kept = (stock if kinds[index % len(kinds)] == "stock" else own), []
        for count in range(125):
            name = "one" if (index + count) % 3 else "two"
            x, wanted = cases[name]
            with tandem.options(use_shared_engines=count % 10 != 0, trust_domain=str(count % 4)):
                kept.append(door.load(fake_programs / f"{name}.pte"))
            np.testing.assert_array_equal(kept[-1](x)[0], wanted)
            if len(kept) > index:
                kept.clear()

    doors.in_threads(*[lambda index=index: work(index) for index in range(8)], timeout=90)
    tandem.on_log(None)
    inner.clear()
    stats = tandem.stats()
    assert (stats.engines, stats.loads, stats.failures) == (0, 0, 0), stats
    assert stats.hits + stats.joined + stats.builds >= 1000, stats
    assert any("from afar" in line for line in lines) and any("a context" in line for line in lines)
    assert fake.violations() == (0, b"") or fake.violations()[0] == 0, fake.violations()
    faulthandler.cancel_dump_traceback_later()


@pytest.mark.parametrize("kinds", [["own"], ["stock"], ["own", "stock"]], ids="-".join)
def test_a_thousand_loads_at_once_neither_hang_nor_crash(kinds, fake_library, fake_programs):
    import fresh

    for _ in range(ROUNDS):
        fresh.run(load_a_thousand, kinds, fake_library, fake_programs, timeout=120).good()


@pytest.mark.fresh(timeout=120)
def test_a_stock_load_that_waits_for_an_own_one_gets_its_engine(fake_library, fake_programs):
    """The stock load holds the interpreter lock while it waits; the builder, and its lines, must not need it."""
    stock, own, fake = doors.open_door("stock"), doors.open_door("own"), doors.Fake(fake_library)
    lines = []
    own.tandem.on_log(lambda level, line: lines.append(line))
    fake.say(doors.BUILD, own.tandem.LogLevel.WARNING, "building")
    fake.delay(doors.BUILD, 500)
    path = fake_programs / "one.pte"

    def load_second():
        fake.wait_inside(doors.BUILD, 1)
        return stock.load(path)

    begin = time.monotonic()
    kept = doors.in_threads(lambda: own.load(path), load_second)
    assert time.monotonic() - begin < 5  # it did not run into the bound of a caller that holds a lock
    assert fake.count(doors.BUILD) == 1 and own.tandem.stats().joined == 1
    assert lines == ["forward: fake: building"]
    del kept


@pytest.mark.fresh(timeout=120)
@pytest.mark.parametrize("name", ["mlp", "mlp_dynamic"])
def test_eight_threads_on_one_handle_get_their_own_outputs(name, models):
    """Field case 07: distinct inputs, with `mlp_dynamic` also distinct shapes, a thousand runs each."""
    door = doors.open_door("own")
    model = getattr(models, name)
    inputs, _ = model.case()
    load = door.load(model)
    random, cases = np.random.default_rng(7), []
    for index in range(8):
        shape = (index + 1, *inputs[0].shape[1:]) if name == "mlp_dynamic" else inputs[0].shape
        x = random.standard_normal(shape, dtype=np.float32)
        cases.append((x, load(x)[0].copy()))
    assert len({wanted.tobytes() for _, wanted in cases}) == 8
    start = threading.Barrier(8)

    def work(x, wanted):
        start.wait(20)
        for _ in range(1000):
            np.testing.assert_array_equal(load(x)[0], wanted)

    doors.in_threads(*[lambda case=case: work(*case) for case in cases], timeout=100)
