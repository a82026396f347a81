"""The bytes of an engine outlive the program, the file's name and whatever replaces it."""

import os
import shutil
import signal

import fresh
import host
import pytest


def run_stock(model):
    there = host.stock()
    (x, *rest), _ = model.case()
    load = there.load(model)
    return [value.tobytes() for value in load(x, *rest)]


def run_tandem(model):
    there = host.tandem()
    inputs, wanted = model.case()
    loads = [there.load(model) for _ in range(2)]
    for _ in range(3):
        for load in loads:
            host.same(load(*inputs), wanted)


@pytest.mark.parametrize("name", ["embedding", "big"])
def test_a_model_that_crashes_the_stock_delegate_runs(models, name, figures):
    """It frees the payload that OpenVINO 2026 goes on reading."""
    model = getattr(models, name)
    crash = fresh.run(run_stock, model)
    assert crash.signal in (signal.SIGSEGV, signal.SIGBUS), crash.story()
    fresh.run(run_tandem, model).good()
    figures.append(f"{name}: {signal.Signals(crash.signal).name} with the stock delegate, right answers with tandem")


@pytest.mark.fresh
@pytest.mark.parametrize("name", ["mlp", "embedding"])
def test_unlinking_a_loaded_file_changes_nothing(models, tmp_path, name):
    there = host.tandem()
    model = getattr(models, name)
    inputs, wanted = model.case()
    path = tmp_path / "program.pte"
    shutil.copy(model.path, path)
    one, two = there.load(path), there.load(path)
    path.unlink()
    for _ in range(3):
        host.same(one(*inputs), wanted)
        host.same(two(*inputs), wanted)
    del one
    host.collect()
    three = there.load(model)
    host.same(two(*inputs), wanted)
    host.same(three(*inputs), wanted)


@pytest.mark.fresh
def test_replacing_a_loaded_file_by_rename_changes_nothing(models, tmp_path):
    there = host.tandem()
    path, new = tmp_path / "program.pte", tmp_path / "new.pte"
    shutil.copy(models.mlp.path, path)
    shutil.copy(models.mlp_other.path, new)
    old = [there.load(path) for _ in range(2)]
    os.replace(new, path)
    later = [there.load(path) for _ in range(2)]
    inputs, wanted = models.mlp.case()
    _, wanted_later = models.mlp_other.case()
    for load in old:
        host.same(load(*inputs), wanted)
    for load in later:
        host.same(load(*inputs), wanted_later)
    assert there.tandem.stats().engines == 2
    del old, load
    host.collect()
    assert there.tandem.stats().engines == 1
    host.same(later[0](*inputs), wanted_later)


@pytest.mark.fresh
def test_copied_bytes_outlive_a_rewrite_of_the_file(models, tmp_path):
    """`payload_bytes=copy` is for files that are not replaced by rename."""
    there = host.tandem()
    there.tandem.set_option("payload_bytes", "copy")
    inputs, wanted = models.embedding.case()
    path = tmp_path / "program.pte"
    shutil.copy(models.embedding.path, path)
    load = there.load(path)
    size = path.stat().st_size
    table = load.program  # its mapping ends with it; the engine's bytes must not
    del table
    with open(path, "r+b") as file:
        file.seek(size // 4)
        file.write(b"\x00" * (size // 2))
    host.same(load(*inputs), wanted)


@pytest.mark.fresh
def test_a_file_that_changed_under_a_mapped_engine_is_not_shared(models, tmp_path):
    there = host.tandem()
    inputs, wanted = models.embedding.case()
    path = tmp_path / "program.pte"
    shutil.copy(models.embedding.path, path)
    one = there.load(path)
    os.utime(path, (1, 1))
    two = there.load(models.embedding)
    stats = there.tandem.stats()
    assert (stats.engines, stats.loads) == (2, 2)
    host.same(one(*inputs), wanted)
    host.same(two(*inputs), wanted)


@pytest.mark.fresh
def test_bytes_that_python_dropped_are_still_there(models):
    there = host.tandem()
    inputs, wanted = models.embedding.case()
    first = there.load(models.embedding.bytes)
    second = there.load(models.embedding.bytes)
    del first
    host.collect()
    junk = [bytearray(os.urandom(1 << 20)) for _ in range(16)]
    host.same(second(*inputs), wanted)
    assert len(junk) == 16
