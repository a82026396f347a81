"""Runs a function in a process in which nothing of ExecuTorch, OpenVINO or tandem was loaded before.

What a process loaded first decides which backend ExecuTorch takes, so nearly every test needs a process of its own.
A new interpreter spends five seconds on importing torch; here a fork of this one starts with that done. It is clean
because this process loads none of the libraries in question, which every fork checks for itself.
"""

import dataclasses
import faulthandler
import os
import pathlib
import pickle
import select
import signal
import sys
import tempfile
import time
import traceback

import pytest

STATE = ("libexecutorch", "libopenvino", "libtandem", "/pybindings/")


@dataclasses.dataclass
class Outcome:
    """How a child ended: by a signal, a status, or with what its function returned."""

    value: object = None
    failure: str = ""  # the traceback, when the function raised
    skipped: str = ""
    signal: int = 0
    status: int = 0
    hung: bool = False
    output: str = ""
    errors: str = ""

    def good(self):
        """The function's value; a child that ended otherwise fails the test with all it said."""
        if self.skipped:
            pytest.skip(self.skipped)
        if self.hung or self.signal or self.status or self.failure:
            pytest.fail(self.story(), pytrace=False)
        return self.value

    def story(self):
        end = (
            "the child hung" if self.hung
            else f"the child died of {signal.Signals(self.signal).name}" if self.signal
            else f"the child ended with status {self.status}" if self.status
            else self.failure
        )
        return f"{end}\n--- its stdout\n{self.output}\n--- its stderr\n{self.errors}"


def loaded(names=STATE):
    maps = pathlib.Path("/proc/self/maps").read_text()
    return sorted({line.split()[-1] for line in maps.splitlines() if any(name in line for name in names)})


def run(function, *args, timeout=60, environment=None, **kwargs):
    """Calls function(*args, **kwargs) in a child and tells how it ended; after `timeout` seconds it is a hang."""
    with tempfile.TemporaryDirectory() as folder:
        paths = {name: pathlib.Path(folder, name) for name in ("result", "output", "errors")}
        sys.stdout.flush()
        sys.stderr.flush()
        child = os.fork()
        if child == 0:
            serve(function, args, kwargs, environment or {}, paths)  # does not return
        outcome = Outcome()
        end = wait(child, timeout)
        if end is None:
            outcome.hung = True
            os.kill(child, signal.SIGABRT)  # faulthandler tells where each thread stands
            if wait(child, 5) is None:
                os.kill(child, signal.SIGKILL)
                os.waitpid(child, 0)
        elif os.WIFSIGNALED(end):
            outcome.signal = os.WTERMSIG(end)
        else:
            outcome.status = os.WEXITSTATUS(end)
        outcome.output = paths["output"].read_text(errors="replace")
        outcome.errors = paths["errors"].read_text(errors="replace")
        if paths["result"].exists() and not outcome.hung and not outcome.signal:
            kind, value = pickle.loads(paths["result"].read_bytes())
            setattr(outcome, kind, value)
        return outcome


def wait(child, timeout):
    """The wait status of a child that ends in time, else None."""
    descriptor = os.pidfd_open(child)
    try:
        poller = select.poll()
        poller.register(descriptor, select.POLLIN)
        if not poller.poll(max(0, timeout) * 1000):
            return None
        return os.waitpid(child, 0)[1]
    finally:
        os.close(descriptor)


def serve(function, args, kwargs, environment, paths):
    status = 70
    try:
        for number, name in ((1, "output"), (2, "errors")):
            os.dup2(os.open(paths[name], os.O_CREAT | os.O_WRONLY | os.O_APPEND, 0o600), number)
        sys.stdout = os.fdopen(1, "w", buffering=1, closefd=False)
        sys.stderr = os.fdopen(2, "w", buffering=1, closefd=False)
        sys.stdin = open(os.devnull)
        faulthandler.enable(sys.stderr)
        for key, value in environment.items():
            os.environ.pop(key, None)
            if value is not None:
                os.environ[key] = str(value)
        try:
            assert not loaded(), f"the parent of the tests loaded {loaded()}"
            result = ("value", function(*args, **kwargs))
        except pytest.skip.Exception as reason:
            result = ("skipped", str(reason))
        except BaseException:
            result = ("failure", traceback.format_exc())
        paths["result"].write_bytes(pickle.dumps(result))
        sys.stdout.flush()
        sys.stderr.flush()
        status = 0
    finally:
        os._exit(status)


def fork_inside(function, timeout=20):
    """In a child of `run`: forks once more. True when the function returned in time, else what happened."""
    sys.stdout.flush()
    sys.stderr.flush()
    child = os.fork()
    if child == 0:
        status = 70
        try:
            function()
            status = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(status)
    end = wait(child, timeout)
    if end is None:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        return f"still running after {timeout} s"
    return end == 0 or f"wait status {end}"


def until(condition, timeout=20):
    """Waits for a condition that other threads bring about."""
    end = time.monotonic() + timeout
    while not condition():
        assert time.monotonic() < end, "the condition did not come"
        time.sleep(0.001)
