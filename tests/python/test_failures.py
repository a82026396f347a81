"""Loads that fail say why, keep nothing, and leave the healthy ones alone."""

import fresh
import host
import pytest


def lines_of(outcome):
    return [line for line in outcome.errors.splitlines() if line.startswith("tandem:")]


def load_and_fail(model, good):
    there = host.tandem()
    with pytest.raises(RuntimeError) as failure:
        there.load(model)
    load = there.load(good)
    inputs, wanted = good.case()
    host.same(load(*inputs), wanted)
    stats = there.tandem.stats()
    assert (stats.engines, stats.loads, stats.failures) == (1, 1, 1)
    return str(failure.value)


def test_a_payload_of_another_openvino_is_refused_by_version(models, models_2025):
    """Field cases 15 and 17, for this vendor: the line says what it is, what is here, and what to do."""
    outcome = fresh.run(load_and_fail, models_2025.mlp, models.mlp)
    outcome.good()
    (line,) = lines_of(outcome)
    assert "2026.4.1" in line and "export" in line, line


DAMAGES = {
    "zeroed": lambda payload: bytes(len(payload)),
    "other magic": lambda payload: b"XX" + payload[2:],
    "frame zeroed": lambda payload: bytes(64) + payload[64:],
    "tail zeroed": lambda payload: payload[: len(payload) // 2] + bytes(len(payload) - len(payload) // 2),
}


def fail_often(path, good, rounds):
    """Field case 19: alone, and while a healthy load shares nothing with the failing ones."""
    there = host.tandem()
    inputs, wanted = good.case()

    def fail():
        for _ in range(rounds):
            with pytest.raises(RuntimeError):
                there.load(path)

    host.same(there.load(good)(*inputs), wanted)
    fail()
    host.collect()
    files, memory = host.open_files(), host.private_bytes()
    healthy = there.load(good)
    fail()
    host.same(healthy(*inputs), wanted)
    stats = there.tandem.stats()
    assert (stats.engines, stats.loads, stats.failures) == (1, 1, 2 * rounds)
    again = there.load(good)
    assert there.tandem.stats().engines == 1
    host.same(again(*inputs), wanted)
    del healthy, again
    fail()
    host.collect()
    assert host.open_files() <= files
    growth = host.private_bytes() - memory
    assert growth < 1 << 20, f"{growth} bytes more after {2 * rounds} failed loads"
    assert there.tandem.stats().engines == 0


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_hundred_failed_loads_leave_nothing(models, payload_of_mlp, tmp_path, damage):
    pte = models.mlp.bytes
    assert pte.count(payload_of_mlp) == 1
    path = tmp_path / "damaged.pte"
    path.write_bytes(pte.replace(payload_of_mlp, DAMAGES[damage](payload_of_mlp)))
    outcome = fresh.run(fail_often, path, models.mlp, 100)
    outcome.good()
    lines = set(lines_of(outcome))
    assert len(lines) == 1, lines
    assert 'load of method "forward"' in lines.pop()


def test_a_malformed_compile_spec_is_refused_by_name(models, tmp_path):
    pte = models.spec_private.bytes
    assert pte.count(b"false") == 1
    path = tmp_path / "malformed.pte"
    path.write_bytes(pte.replace(b"false", b"maybe"))
    outcome = fresh.run(fail_often, path, models.mlp, 100)
    outcome.good()
    (line,) = set(lines_of(outcome))
    assert "use_shared_engines" in line and "maybe" in line, line


def load_without_library(model):
    there = host.tandem()
    with pytest.raises(RuntimeError):
        there.load(model)
    assert there.tandem.stats().failures == 1


def test_a_missing_openvino_is_told_with_what_mends_it(models, tmp_path):
    missing = {"TANDEM_OPENVINO_LIBRARY": tmp_path / "libopenvino_c.so"}
    outcome = fresh.run(load_without_library, models.mlp, environment=missing)
    outcome.good()
    (line,) = lines_of(outcome)
    assert str(tmp_path / "libopenvino_c.so") in line and "TANDEM_OPENVINO_LIBRARY" in line, line


def run_wrong_inputs(models):
    there = host.tandem()
    load = there.load(models.mlp_dynamic)
    inputs, wanted = models.mlp_dynamic.case("forward4")
    import numpy as np

    with pytest.raises(RuntimeError):
        load()
    with pytest.raises(RuntimeError):
        load(np.zeros((33, 64), np.float32))
    host.same(load(*inputs), wanted)


def test_wrong_inputs_leave_the_load_usable(models):
    fresh.run(run_wrong_inputs, models).good()
