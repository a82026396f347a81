"""Runs the examples as a user does: each in a process of its own, with the tandem that PYTHONPATH names."""

import dataclasses
import functools
import os
import pathlib
import subprocess
import sys

import pytest

HERE = pathlib.Path(__file__).parent
EXAMPLES = HERE.parents[1] / "examples"
ENVIRONMENT = {
    **os.environ,
    "PYTHONPATH": f"{HERE}:{os.environ.get('PYTHONPATH', '')}",
    "RAY_AUTH_MODE": "disabled",  # else Ray keeps a token in the home folder
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_SERVE_PROXY_READY_CHECK_TIMEOUT_S": "50",  # Serve's 5 s are too few where other programs run
    "RAY_SERVE_PROXY_HEALTH_CHECK_TIMEOUT_S": "50",
}


@dataclasses.dataclass(frozen=True)
class Example:
    """How an example is started: `run` waits for its end, `start` gives the process."""

    environment: dict

    def command(self, name, *arguments):
        script = EXAMPLES / name if (EXAMPLES / name).exists() else HERE / name
        return [sys.executable, str(script), *map(str, arguments)]

    def run(self, name, *arguments, status=0, timeout=400):
        done = subprocess.run(
            self.command(name, *arguments),
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )
        assert done.returncode == status, f"{name} ended with {done.returncode}\n{done.stdout}\n{done.stderr}"
        return done

    def start(self, name, *arguments, **more):
        return subprocess.Popen(self.command(name, *arguments), env=self.environment, text=True, **more)


@pytest.fixture(scope="session")
def example():
    return Example(ENVIRONMENT)


@pytest.fixture(scope="session")
def export(example, tmp_path_factory):
    """What export.py makes of its small policy for a backend, once. It replaced a file that was there."""
    folder = tmp_path_factory.mktemp("programs")

    @functools.cache
    def make(backend):
        path = folder / ("small.pte" if backend == "openvino" else f"{backend}.pte")
        path.write_bytes(b"in use")
        os.link(path, path.with_suffix(".before"))
        example.run("export.py", path, "--backend", backend)
        return path

    return make


@pytest.fixture(scope="session")
def exported(export):
    return {backend: export(backend) for backend in ("openvino", "aotinductor", "xnnpack")}


@pytest.fixture(scope="session")
def policy(export):
    return export("openvino")
