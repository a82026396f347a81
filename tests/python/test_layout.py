"""Programs whose output lies in another order than rows: right numbers, or an error that names the output."""

import fresh
import host
import pytest


def run_twice(model):
    """Whether the runs were refused; numbers that are not OpenVINO's own fail here."""
    there = host.tandem()
    load = there.load(model)
    inputs, wanted = model.case()
    refused = 0
    for _ in range(2):
        try:
            found = load(*inputs)
        except RuntimeError:
            refused += 1
        else:
            host.same(found, wanted)
    assert refused in (0, 2)
    return bool(refused)


@pytest.mark.parametrize("way", ["clone", "to"])
def test_a_channels_last_output_is_never_silently_wrong(models, way):
    model = getattr(models, f"convolution_{way}")
    outcome = fresh.run(run_twice, model)
    if outcome.good():
        lines = [line for line in outcome.errors.splitlines() if line.startswith("tandem:")]
        assert len(lines) == 2, outcome.errors
        for line in lines:
            assert "output 0 (aten_" in line and "not contiguous" in line, line
