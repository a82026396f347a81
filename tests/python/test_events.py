"""What the delegate does shows in ExecuTorch's event tracer (ETDump)."""

import host
import pytest


@pytest.mark.fresh
def test_loads_and_runs_reach_the_etdump(models, tmp_path):
    there = host.tandem()
    inputs, wanted = models.mlp.case()
    loads = [there.load(models.mlp, enable_etdump=True) for _ in range(2)]
    for _ in range(3):
        for load in loads:
            host.same(load(*inputs), wanted)
    events = []
    for number, load in enumerate(loads):
        dump = tmp_path / f"{number}.etdp"
        load.program.write_etdump_result_to_file(str(dump), str(tmp_path / "debug"))
        events.append(dump.read_bytes())
    for dump in events:
        assert dump.count(b"tandem load") == 1
        assert b"tandem run" in dump
    assert b"shared=0" in events[0] and b"shared=1" in events[1]
