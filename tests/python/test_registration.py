"""Who answers for OpenvinoBackend: whoever came first, and tandem says so when it was late."""

import ctypes

import fresh
import host
import pytest


@pytest.mark.fresh
def test_a_plug_in_that_comes_first_gets_the_loads(models):
    there = host.tandem()
    assert there.tandem.register() == (host.OK, "")
    assert there.tandem.active()
    assert not there.tandem.active("XnnpackBackend")
    names = there.runtime.backend_registry.registered_backend_names
    assert names.count("OpenvinoBackend") == 1 and "XnnpackBackend" in names
    load = there.load(models.mlp)
    inputs, wanted = models.mlp.case()
    host.same(load(*inputs), wanted)
    assert there.tandem.stats().loads == 1


def load_late(model):
    there = host.stock()
    tandem = host.Tandem()
    ctypes.CDLL(host.PLUGIN)
    again = [tandem.register() for _ in range(2)]
    active = tandem.active()
    inputs, wanted = model.case()
    host.same(there.load(model)(*inputs), wanted)
    return again, active, tandem.stats().loads


def test_a_plug_in_that_comes_late_warns_once_and_breaks_nothing(models_2025, library_2025):
    """With the OpenVINO whose import copies: the stock delegate reads freed bytes with the later one."""
    outcome = fresh.run(load_late, models_2025.mlp, environment={"OPENVINO_LIB_PATH": library_2025})
    again, active, loads = outcome.good()
    lines = [line for line in outcome.errors.splitlines() if line.startswith("tandem:")]
    assert len(lines) == 1, outcome.errors
    assert lines[0].startswith("tandem: warning: another backend is registered as OpenvinoBackend")
    assert 'move "import tandem" before executorch.runtime' in lines[0]
    assert not active and loads == 0
    for code, message in again:
        assert code == host.INVALID_STATE and message in lines[0]


def run_fixture(folder, name):
    import numpy as np

    there = host.tandem()
    for _ in range(2):
        load = there.load(folder / f"{name}.pte")
        for first in sorted(folder.glob(f"{name}.forward.*.in0.npy")):
            wanted = np.load(str(first).replace(".in0.", ".out0."))
            found = load(np.load(first))[0]
            assert found.shape == wanted.shape
            np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-5)
    return there.tandem.stats().loads


@pytest.mark.parametrize("name", ["xnnpack_mlp", "xnnpack_mlp_dynamic", "portable_mlp"])
def test_programs_of_other_backends_go_on_as_before(data, name):
    assert fresh.run(run_fixture, data / "pte", name).good() == 0
