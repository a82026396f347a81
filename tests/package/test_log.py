"""Log lines reach a Python function, from both runtimes, whatever that function does."""

import gc
import os
import signal
import subprocess
import sys
import threading

import doors
import numpy as np
import pytest

both = pytest.mark.parametrize("kind", ["own", "stock"])


@both
@pytest.mark.fresh
def test_lines_come_with_their_level(kind, fake_library, fake_programs):
    door, fake = doors.open_door(kind), doors.Fake(fake_library)
    Level, lines = door.tandem.LogLevel, []
    door.tandem.on_log(lambda level, line: lines.append((level, line)))
    fake.say(doors.BUILD, Level.WARNING, "warm engine")
    fake.say(doors.BUILD, Level.INFO, "a detail")
    kept = [door.load(fake_programs / "one.pte")]
    assert lines == [(Level.WARNING, "forward: fake: warm engine")]
    lines.clear()
    with door.tandem.options(log_level="info"):
        kept.append(door.load(fake_programs / "one.pte"))
    assert [level for level, _ in lines] == [Level.INFO]
    assert "shares engine 1, 2 loads now" in lines[0][1]
    assert type(lines[0][0]) is Level


@both
@pytest.mark.fresh
def test_a_function_that_loads_does_not_deadlock(kind, fake_library, fake_programs):
    door, fake = doors.open_door(kind), doors.Fake(fake_library)
    kept = []

    def load(level, line):
        if "warm engine" in line and len(kept) < 3:
            kept.append(door.load(fake_programs / "two.pte"))

    door.tandem.on_log(load)
    fake.say(doors.BUILD, door.tandem.LogLevel.WARNING, "warm engine")
    doors.in_threads(*[lambda: door.load(fake_programs / "one.pte") for _ in range(4)], timeout=20)
    assert kept and door.tandem.stats().failures == 0


@pytest.mark.fresh
def test_a_function_that_runs_the_method_whose_line_it_got_is_refused_and_no_hang(fake_library, fake_programs):
    door, fake = doors.open_door("own"), doors.Fake(fake_library)
    x, wanted = np.load(fake_programs / "one.npy")
    load, other = door.load(fake_programs / "one.pte"), door.load(fake_programs / "one.pte")
    found, lines = [], []

    def run(level, line):
        lines.append(line)
        if len(lines) == 1:
            found.append(other(x)[0])
            for use in (lambda: load(x), load.method.reset):
                with pytest.raises(door.tandem.InvalidStateError, match="being run by this thread"):
                    use()
            load.method.close()
            found.append(load.method.closed)

    door.tandem.on_log(run)
    fake.say(doors.RUN, door.tandem.LogLevel.WARNING, "ran")
    np.testing.assert_array_equal(load(x)[0], wanted)
    np.testing.assert_array_equal(found[0], wanted)
    gc.collect()  # the refusals' tracebacks
    assert found[1] is True and len(lines) == 2 and door.tandem.stats().loads == 1


@both
@pytest.mark.fresh
def test_what_the_function_raises_goes_to_the_unraisable_hook(kind, fake_library, fake_programs):
    door, fake = doors.open_door(kind), doors.Fake(fake_library)
    reports = []
    sys.unraisablehook = lambda report: reports.append(report.exc_value)

    def fail(level, line):
        raise ArithmeticError(line)

    door.tandem.on_log(fail)
    fake.say(doors.BUILD, door.tandem.LogLevel.WARNING, "warm engine")
    load = door.load(fake_programs / "one.pte")
    assert [repr(error) for error in reports] == ["ArithmeticError('forward: fake: warm engine')"]
    assert door.tandem.stats().loads == 1
    del load


@pytest.mark.parametrize("listens", [False, True])
@pytest.mark.fresh
def test_ctrl_c_during_a_load_is_raised_after_it_and_leaves_no_load(listens, fake_library, fake_programs):
    door, fake = doors.open_door("own"), doors.Fake(fake_library)
    lines, raised = [], []
    program = door.runtime.load_program(fake_programs / "one.pte")
    fake.say(doors.BUILD, door.tandem.LogLevel.WARNING, "warm engine", 3)
    if listens:
        door.tandem.on_log(lambda level, line: lines.append(line))

    def interrupt():
        fake.wait_inside(doors.BUILD, 1)
        os.kill(os.getpid(), signal.SIGINT)
        fake.open_gate(doors.BUILD)

    signal.signal(signal.SIGINT, signal.default_int_handler)
    fake.close_gate(doors.BUILD)
    thread = threading.Thread(target=interrupt)
    thread.start()
    try:
        program.load_method("forward")
    except KeyboardInterrupt:
        raised.append("load")
    thread.join(20)
    gc.collect()
    stats = door.tandem.stats()
    assert raised == ["load"] and len(lines) == (3 if listens else 0)
    assert (stats.builds, stats.loads, stats.engines) == (1, 0, 0)


@pytest.mark.fresh
def test_none_takes_the_function_back(fake_library, fake_programs):
    door, fake = doors.open_door("own"), doors.Fake(fake_library)
    fake.say(doors.BUILD, door.tandem.LogLevel.WARNING, "warm engine")
    lines = []
    door.tandem.on_log(lambda level, line: lines.append(line))
    with pytest.raises(TypeError, match="int"):
        door.tandem.on_log(5)
    door.load(fake_programs / "one.pte")
    assert len(lines) == 1
    door.tandem.on_log(None)
    read, write = os.pipe()
    stderr = os.dup(2)
    os.dup2(write, 2)
    try:
        door.load(fake_programs / "one.pte")
    finally:
        os.dup2(stderr, 2)
    os.close(write)
    with open(read) as pipe:
        assert pipe.read() == "tandem: warning: forward: fake: warm engine\n"
    assert len(lines) == 1


@pytest.mark.parametrize("delay", [0, 1, 5, 30])
def test_loads_under_way_at_the_end_of_the_interpreter_do_not_crash_it(delay, fake_library, fake_programs):
    script = f"""
import sys; sys.path.insert(0, {os.path.dirname(__file__)!r})
import contextlib, os, threading, doors, tandem
fake = doors.Fake({str(fake_library)!r})
fake.say(doors.BUILD, tandem.LogLevel.WARNING, "late line")
tandem.on_log(lambda level, line: os.write(2, f"python: {{line}}\\n".encode()))
program = tandem.Runtime.get().load_program({str(fake_programs / "one.pte")!r})
fake.delay(doors.BUILD, {delay})

def load():
    with contextlib.suppress(tandem.InvalidStateError):  # the interpreter is ending
        while True:
            with tandem.options(use_shared_engines=False):
                program.load_method("forward")

for _ in range(4):
    threading.Thread(target=load, daemon=True).start()
fake.library.fake_wait_count(fake.vendor, doors.BUILD, doors.ctypes.c_uint64(20))
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
    lines = set(done.stderr.splitlines())
    assert done.returncode == 0, done.stderr[-3000:]
    line = "forward: fake: late line"
    assert f"python: {line}" in lines
    assert lines <= {f"python: {line}", f"tandem: {line}", f"tandem: warning: {line}"}, lines
