"""Programs for the tests, fresh processes for them, and the table of figures at the end.

A test marked `fresh` runs in a child (fresh.py); its fixtures are made here, where neither tandem nor the runtime is
ever loaded.
"""

import os

os.environ["OPENBLAS_NUM_THREADS"] = "1"  # a pool of threads would not survive the forks

import dataclasses  # noqa: E402
import pathlib  # noqa: E402
import sys  # noqa: E402

import executorch.exir._warnings  # noqa: E402, F401  most of what executorch.runtime imports, and none of its libraries
import numpy as np  # noqa: E402
import pytest  # noqa: E402

sys.path.insert(0, os.path.dirname(__file__))
import fresh  # noqa: E402
import host  # noqa: E402
import programs  # noqa: E402

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


class Models:
    def __init__(self, folder):
        self.folder = folder

    def __getattr__(self, name):
        path = self.folder / f"{name}.pte"
        assert path.exists(), path
        return Model(path)


@pytest.fixture(scope="session")
def models():
    return Models(programs.export())


@pytest.fixture(scope="session")
def library_2025():
    name = "TANDEM_OPENVINO_2025_LIBRARY"
    return os.environ.get(name) or pytest.skip(f"{name} names no library")


@pytest.fixture(scope="session")
def models_2025(library_2025):
    packages = pathlib.Path(library_2025).parents[2]
    return Models(programs.export(("mlp", "big"), str(packages)))


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
    config.addinivalue_line("markers", "quiet: compares times, so `./dev test` runs it when nothing else runs")


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
