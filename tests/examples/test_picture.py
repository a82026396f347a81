"""The picture of the guide, docs/python.md: made and checked here, left in build/reports."""

import importlib.metadata
import itertools
import json
import os
import pathlib
import sys

import pytest

sys.path.append(str(pathlib.Path(__file__).parents[1] / "python"))
import programs

MIB = 1 << 20
REPORTS = pathlib.Path(__file__).parents[2] / "build" / "reports"


@pytest.fixture(scope="module")
def series(example, tmp_path_factory):
    """The figures, by name and kind: bytes after 0, 1, 2 ... loads."""
    made = []
    for variable, names in (("TANDEM_OPENVINO_LIBRARY", ()), ("TANDEM_OPENVINO_2025_LIBRARY", ("mlp", "big"))):
        if library := os.environ.get(variable):
            packages = str(pathlib.Path(library).parents[2])
            path = programs.export(names, packages if names else "") / "big.pte"  # as tests/python has them
            found = importlib.metadata.distributions(name="openvino", path=[packages])
            made.append({"backend": "openvino", "openvino": next(found).version, "library": library, "path": str(path)})
    path = tmp_path_factory.mktemp("picture") / "xnnpack.pte"
    example.run("export.py", path, "--model", "models:build_big", "--backend", "xnnpack")
    made.append({"backend": "xnnpack", "path": str(path)})
    os.sync()  # dirty pages of a file would count as the process's own
    REPORTS.mkdir(parents=True, exist_ok=True)
    example.run("picture.py", REPORTS / "memory.svg", json.dumps(made))
    found = json.loads((REPORTS / "memory.json").read_text())
    path.unlink()
    return {(each["name"], each["kind"]): each["bytes"] for each in found}


def added(sizes):
    """What each load after the first added."""
    return [after - before for before, after in itertools.pairwise(sizes[1:])]


def test_only_the_first_shared_load_costs_memory(series):
    shared = {name: sizes for (name, kind), sizes in series.items() if kind == "shared"}
    assert shared
    for name, sizes in shared.items():
        assert max(added(sizes)) < MIB, (name, sizes)
        assert sizes[1] > 50 * MIB, f"{name}: the measurement does not see what an engine costs"


def test_stock_delegates_and_private_engines_cost_the_weights_at_each_load(series):
    others = {key: sizes for key, sizes in series.items() if key[1] != "shared"}
    assert ("XNNPACK", "stock") in others
    for key, sizes in others.items():
        assert min(added(sizes)) > 50 * MIB, (key, sizes)


def test_the_picture_is_there(series):
    text = (REPORTS / "memory.svg").read_text()
    assert text.startswith("<?xml") and "</svg>" in text
    assert (REPORTS / "memory.svg").stat().st_size < 100_000
