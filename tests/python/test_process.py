"""fork and exit (field case 27), and a Method that outlives its Program."""

import contextlib
import os
import pathlib
import subprocess
import sys

import fresh
import host
import pytest

HERE = pathlib.Path(__file__).parent


@pytest.mark.fresh
def test_a_child_forked_before_the_first_load_loads_and_runs(models):
    there = host.tandem()
    inputs, wanted = models.mlp.case()
    assert fresh.fork_inside(lambda: host.same(there.load(models.mlp)(*inputs), wanted)) is True
    host.same(there.load(models.mlp)(*inputs), wanted)


def fork_after_a_run(models):
    there = host.tandem()
    inputs, wanted = models.mlp.case()
    load = there.load(models.mlp)
    host.same(load(*inputs), wanted)

    # Either may be refused: the test reads the line. What comes back is right.
    def run_inherited():
        with contextlib.suppress(RuntimeError):
            host.same(load(*inputs), wanted)

    def load_anew():
        with contextlib.suppress(RuntimeError):
            host.same(there.load(models.mlp_other)(*inputs), models.mlp_other.case()[1])

    inherited = fresh.fork_inside(run_inherited, timeout=5)
    anew = fresh.fork_inside(load_anew, timeout=5)
    for _ in range(3):
        host.same(load(*inputs), wanted)
        host.same(there.load(models.mlp)(*inputs), wanted)
    assert there.tandem.stats().engines == 1
    return inherited, anew


def test_a_child_forked_after_a_run_never_hangs_and_the_parent_goes_on(models):
    outcome = fresh.run(fork_after_a_run, models)
    inherited, anew = outcome.good()
    assert inherited is True, (inherited, outcome.errors)
    for line in outcome.errors.splitlines():
        if line.startswith("tandem:"):
            assert "forked from" in line, line
    assert anew is True, (anew, outcome.errors)


def fork_while_loading(models):
    import threading

    there = host.tandem()
    inputs, wanted = models.mlp.case()
    stop = threading.Event()

    def load():
        while not stop.is_set():
            host.same(there.load(models.mlp)(*inputs), wanted)

    thread = threading.Thread(target=load, daemon=True)
    thread.start()
    fresh.until(lambda: there.tandem.stats().builds > 0)
    try:
        return [fresh.fork_inside(lambda: there.tandem.stats().engines, timeout=10) for _ in range(10)]
    finally:
        stop.set()
        thread.join(20)


def test_the_pool_of_a_child_is_usable_whatever_other_threads_did(models):
    assert fresh.run(fork_while_loading, models).good() == [True] * 10


def interpreter(script, *arguments, environment=None):
    """A new interpreter, which ends as interpreters do. What it wrote to stderr after its imports."""
    prologue = f"import sys; sys.path.insert(0, {str(HERE)!r}); import host, pathlib; "
    prologue += "there = host.tandem(); print('READY', file=sys.stderr, flush=True)\n"
    done = subprocess.run(
        [sys.executable, "-c", prologue + script, *map(str, arguments)],
        env={**os.environ, **(environment or {})}, capture_output=True, text=True, timeout=60,
    )
    return done.returncode, done.stderr.partition("READY\n")[2]


LOAD = """
import torch
path = pathlib.Path(sys.argv[1])
loads = [there.load(path) for _ in range(2)]
for load in loads:
    load.method.execute([torch.ones(4, 64)])
"""
AT_EXIT = """
import atexit
def unload():
    global load
    loads.clear()
    load = None
    host.collect()
    assert there.tandem.stats().engines == 0
atexit.register(unload)
"""
PROGRAM_FIRST = """
load.program = None
host.collect()
assert there.tandem.stats().loads == 2
load.method.execute([torch.ones(4, 64)])
loads[0].program = None
loads[0].method = loads[1].method = None
load = None
host.collect()
assert there.tandem.stats().loads == 0
"""
PLUGIN_CLOSED = """
import _ctypes
loads.clear()
load = None
host.collect()
assert there.tandem.stats().loads == 0
_ctypes.dlclose(there.tandem.library._handle)
there.load(path).method.execute([torch.ones(4, 64)])  # it stays: ExecuTorch's table points into it
"""
ENDINGS = {
    "without unloading": "",
    "unloading at exit": AT_EXIT,
    "a method outliving its program": PROGRAM_FIRST,
    "after the plug-in was closed": PLUGIN_CLOSED,
}


@pytest.mark.parametrize("ending", ENDINGS)
def test_a_process_ends_cleanly(models, ending):
    assert interpreter(LOAD + ENDINGS[ending], models.mlp.path) == (0, "")
