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


def run_rounds(models, payloads, rounds):
    """Each round: two loads past the interpreter lock and four by the stock runtime, of two engines, at once."""
    there = host.tandem()
    assert there.tandem.set_option("log_level", "debug") == (host.OK, "")
    seen = []
    there.tandem.log_to(lambda level, line: seen.append((level, line)))
    cases = {name: getattr(models, name).case() for name in payloads}
    names = list(payloads)
    gate = threading.Barrier(6)

    def work(index):
        name = names[index % 2]
        inputs, wanted = cases[name]
        for finished in range(rounds):
            gate.wait(30)
            if index < 2:
                load = there.tandem.load_payload(payloads[name])
            else:
                load = there.load(getattr(models, name))
                host.same(load(*inputs), wanted)
            gate.wait(30)
            if index == 0:
                stats = there.tandem.stats()
                assert (stats.engines, stats.loads, stats.builds) == (2, 6, 2 * (finished + 1))
            gate.wait(30)
            if index < 2:
                there.tandem.unload(load)
            del load
            gate.wait(30)
            if index == 0:
                assert (there.tandem.stats().engines, there.tandem.stats().loads) == (0, 0)

    together(6, work)
    stats = there.tandem.stats()
    assert (stats.failures, stats.fallbacks, stats.log_lines_dropped) == (0, 0, 0)
    assert stats.joined + stats.hits == 4 * rounds
    assert len(seen) >= 6 * rounds, "each load tells how it got its engine"
    return stats.builds, stats.hits, stats.joined, len(seen)


@pytest.mark.parametrize("again", range(3))
def test_sixty_rounds_of_four_threads_with_flights_and_log_lines(models, payload, figures, again):
    payloads = {name: payload(name) for name in ("mlp", "mlp_other")}
    builds, hits, joined, lines = fresh.run(run_rounds, models, payloads, 60, timeout=100).good()
    assert joined > 0, "no load met a flight"
    figures.append(
        f"60 rounds, 4 threads of the stock runtime and 2 past its lock: {builds} builds, {hits} hits, "
        f"{joined} joined, {lines} log lines"
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
