"""Threads of one Python process on the stock runtime, which keeps the interpreter lock while it loads and runs.

Several loads at once still meet there: a load from another thread that gave the lock up (as tandem's own interface
does) has its flight while the stock extension waits for it with the lock held, and log lines want that lock.
"""

import threading

import fresh
import host
import pytest


def together(count, work, timeout=100):
    """Runs work(index) on that many threads that start at once; raises what the first of them raised."""
    barrier, failures = threading.Barrier(count), []

    def body(index):
        try:
            barrier.wait(30)
            work(index)
        except BaseException as failure:
            failures.append(failure)

    threads = [threading.Thread(target=body, args=(index,), daemon=True) for index in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout)
        assert not thread.is_alive(), "a thread hangs"
    if failures:
        raise failures[0]


def load_in_rounds(models, payload, rounds, seen):
    there = host.tandem()
    assert there.tandem.set_option("log_level", "debug") == (host.OK, "")
    there.tandem.log_to(lambda level, line: seen.append((level, line)))
    cases = {name: getattr(models, name).case() for name in ("mlp", "mlp_other")}
    stop = threading.Event()

    def fly():
        """Builds and drops the engine of mlp again and again, without the interpreter lock."""
        while not stop.is_set():
            there.tandem.unload(there.tandem.load_payload(payload))

    def load(index):
        name = ("mlp", "mlp_other")[index % 2]
        inputs, wanted = cases[name]
        for _ in range(rounds):
            host.same(there.load(getattr(models, name))(*inputs), wanted)

    flyers = [threading.Thread(target=fly, daemon=True) for _ in range(2)]
    for flyer in flyers:
        flyer.start()
    try:
        together(4, load)
    finally:
        stop.set()
    for flyer in flyers:
        flyer.join(20)
        assert not flyer.is_alive(), "a thread hangs"
    host.collect()
    return there.tandem.stats()


def run_rounds(models, payload):
    seen = []
    stats = load_in_rounds(models, payload, 60, seen)
    assert (stats.engines, stats.loads, stats.failures, stats.fallbacks) == (0, 0, 0, 0)
    assert stats.builds + stats.hits + stats.joined >= 4 * 60
    assert len(seen) >= 4 * 60, "each load tells how it got its engine"
    return stats.builds, stats.hits, stats.joined, len(seen)


@pytest.mark.parametrize("again", range(2))
def test_sixty_rounds_of_four_threads_with_flights_and_log_lines(models, payload, figures, again):
    outcome = fresh.run(run_rounds, models, payload("mlp"), timeout=100)
    builds, hits, joined, lines = outcome.good()
    assert joined > 0, "no load met a flight"
    figures.append(
        f"4 threads x 60 loads, 2 more outside the interpreter lock: {builds} builds, {hits} hits, {joined} joined, "
        f"{lines} log lines"
    )


@pytest.mark.fresh(timeout=100)
def test_lines_on_stderr_from_many_threads_do_not_crash_the_extension(models):
    """The default sink, while the extension swaps the process's streams."""
    there = host.tandem()
    there.tandem.set_option("log_level", "debug")
    inputs, wanted = models.mlp.case()

    def load(_):
        for _ in range(60):
            host.same(there.load(models.mlp)(*inputs), wanted)

    together(4, load)
    assert there.tandem.stats().failures == 0


@pytest.mark.fresh(timeout=100)
def test_sixteen_threads_load_at_once_and_build_once(models):
    """Field case 05, through the stock runtime."""
    there = host.tandem()
    inputs, wanted = models.mlp.case()
    for rounds in range(1, 21):
        loads = [None] * 16
        loaded = threading.Barrier(16)

        def work(index):
            loads[index] = there.load(models.mlp)
            loaded.wait(30)
            host.same(loads[index](*inputs), wanted)

        together(16, work)
        stats = there.tandem.stats()
        assert (stats.engines, stats.loads, stats.builds) == (1, 16, rounds)
        loads.clear()
        host.collect()
        assert (there.tandem.stats().engines, there.tandem.stats().loads) == (0, 0)


@pytest.mark.fresh(timeout=100)
def test_threads_that_load_past_the_interpreter_lock_build_once(models, payload_of_mlp):
    """Field case 05: the loads that really are under way at the same time."""
    there = host.tandem()
    for rounds in range(1, 41):
        loads = [None] * 16

        def work(index):
            loads[index] = there.tandem.load_payload(payload_of_mlp)

        together(16, work)
        stats = there.tandem.stats()
        assert (stats.engines, stats.loads, stats.builds) == (1, 16, rounds)
        together(16, lambda index: there.tandem.unload(loads[index]))
        assert there.tandem.stats().engines == 0
    assert stats.joined > 0


@pytest.mark.fresh(timeout=100)
def test_each_of_eight_threads_gets_its_own_answers(models):
    """Field case 07: one load, then one load with another shape on each thread."""
    there = host.tandem()
    load = there.load(models.mlp_dynamic)
    cases = [models.mlp_dynamic.case(f"forward{count}") for count in (1, 4, 32)]

    def work(index):
        inputs, wanted = cases[index % len(cases)]
        for _ in range(400):
            host.same(load(*inputs), wanted)

    together(8, work)


@pytest.mark.fresh(timeout=100)
def test_eight_threads_with_a_load_each_on_one_engine(models):
    there = host.tandem()
    loads = [there.load(models.mlp_dynamic) for _ in range(8)]
    cases = [models.mlp_dynamic.case(f"forward{count}") for count in (1, 4, 32)]

    def work(index):
        for step in range(200):
            inputs, wanted = cases[(index + step) % len(cases)]
            host.same(loads[index](*inputs), wanted)

    together(8, work)
    assert there.tandem.stats().engines == 1
