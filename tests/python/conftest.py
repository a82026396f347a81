"""Programs for the tests, fresh processes for them, and the table of figures at the end.

A test marked `fresh` runs in a child (fresh.py); its fixtures are made here, where neither tandem nor the runtime is
ever loaded. Programs are made once (models.py) and kept in the cache folder under a hash of all that goes into them.
"""

import os

os.environ["OPENBLAS_NUM_THREADS"] = "1"  # a pool of threads would not survive the forks

import dataclasses  # noqa: E402
import fcntl  # noqa: E402
import functools  # noqa: E402
import hashlib  # noqa: E402
import importlib.metadata  # noqa: E402
import pathlib  # noqa: E402
import shutil  # noqa: E402
import subprocess  # noqa: E402
import sys  # noqa: E402

import executorch.exir._warnings  # noqa: E402, F401  most of what executorch.runtime imports, and none of its libraries
import numpy as np  # noqa: E402
import pytest  # noqa: E402

sys.path.insert(0, os.path.dirname(__file__))
import fresh  # noqa: E402
import host  # noqa: E402

HERE = pathlib.Path(__file__).parent
FIGURES = []


@dataclasses.dataclass(frozen=True)
class Model:
    path: pathlib.Path

    def case(self, method="forward"):
        """Inputs and the outputs that OpenVINO itself gives for them."""
        with np.load(self.path.with_suffix(f".{method}.npz")) as data:
            return [
                [data[f"{kind}{i}"] for i in range(len(data.files)) if f"{kind}{i}" in data] for kind in ("in", "out")
            ]

    @property
    def bytes(self):
        return self.path.read_bytes()


@functools.cache
def export(names, packages):
    """The folder with those models; `packages`: the site-packages whose OpenVINO makes them, "" for this one's."""
    cache = pathlib.Path(os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache") / "tandem"
    flags = next((line for line in open("/proc/cpuinfo") if line.startswith(("flags", "Features"))), "")
    found = importlib.metadata.distributions(**({"path": [packages]} if packages else {}))
    openvino = next(each.version for each in found if each.name == "openvino")
    versions = [importlib.metadata.version(name) for name in ("torch", "executorch", "numpy")]
    content = repr([(HERE / "models.py").read_bytes(), flags, openvino, versions, names])
    folder = cache / f"programs-{openvino}-{hashlib.sha256(content.encode()).hexdigest()[:12]}"
    cache.mkdir(parents=True, exist_ok=True)
    with open(f"{folder}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / "ready").exists():
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir()
            environment = dict(os.environ, PYTHONPATH=packages)
            done = subprocess.run(
                [sys.executable, HERE / "models.py", folder, *names],
                env=environment, capture_output=True, text=True, timeout=400,
            )
            assert done.returncode == 0, done.stderr[-4000:]
            os.sync()  # dirty pages of a file would count as the process's own
            (folder / "ready").touch()
    return folder


class Models:
    def __init__(self, folder):
        self.folder = folder

    def __getattr__(self, name):
        path = self.folder / f"{name}.pte"
        assert path.exists(), path
        return Model(path)


@pytest.fixture(scope="session")
def models():
    return Models(export((), ""))


@pytest.fixture(scope="session")
def library_2025():
    return os.environ.get("TANDEM_OPENVINO_2025_LIBRARY") or pytest.skip("TANDEM_OPENVINO_2025_LIBRARY names no library")


@pytest.fixture(scope="session")
def models_2025(library_2025):
    packages = pathlib.Path(library_2025).parents[2]
    return Models(export(("mlp", "big"), str(packages)))


@pytest.fixture(scope="session")
def payload(models):
    """A function from a model's name to what its one delegate gets."""
    from executorch.exir._serialize._program import deserialize_pte_binary

    def find(name):
        program = deserialize_pte_binary(getattr(models, name).bytes).program
        (data,) = program.backend_delegate_data
        return bytes(data.data)

    return find


@pytest.fixture(scope="session")
def payload_of_mlp(payload):
    return payload("mlp")


@pytest.fixture(scope="session")
def data():
    return pathlib.Path(os.environ.get("TANDEM_DATA") or HERE.parent / "data")


@pytest.fixture(scope="session")
def figures():
    """Lines for the table at the end of the run."""
    return FIGURES


def pytest_configure(config):
    config.addinivalue_line("markers", "fresh(timeout, environment): runs in a process of its own")


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem):
    mark = pyfuncitem.get_closest_marker("fresh")
    if mark is None:
        return None
    names = pyfuncitem._fixtureinfo.argnames
    fresh.run(pyfuncitem.obj, **{name: pyfuncitem.funcargs[name] for name in names}, **mark.kwargs).good()
    return True


def pytest_terminal_summary(terminalreporter):
    if FIGURES:
        terminalreporter.section("figures")
        for line in FIGURES:
            terminalreporter.line(line)


def pytest_sessionstart():
    assert pathlib.Path(host.PLUGIN).exists(), f"{host.PLUGIN} is missing: run ./dev build"
