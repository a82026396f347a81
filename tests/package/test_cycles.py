"""Loading, running and unloading for ever keeps nothing: memory, descriptors and threads are flat after the start."""

import doors
import numpy as np
import pytest

START = 100  # cycles that may still fill caches
POINTS = 40


def slope(samples):
    """Of (cycle, bytes) pairs: bytes a cycle, the median of the least squares of each quarter.

    What is kept each cycle shows in every quarter; an arena that a busy machine's threads grow once, in one.
    """
    quarters = np.array_split(np.array(samples, dtype=float), 4)
    return float(np.median([np.polyfit(*quarter.T, 1)[0] for quarter in quarters]))


def turn(door, path, inputs, wanted, count):
    memory, handles, tasks = [], set(), set()
    for cycle in range(1, count + 1):
        load = door.load(path)
        found = load(*inputs)
        if cycle % (count // POINTS) == 0 or cycle == 1:
            np.testing.assert_allclose(found[0], wanted[0], rtol=1e-4, atol=1e-5)
        del load, found
        if cycle >= START and cycle % (count // POINTS) == 0:
            memory.append((cycle, doors.private_bytes()))
            handles.add(doors.descriptors())
            tasks.add(doors.threads())
    stats = door.tandem.stats()
    assert (stats.builds, stats.engines, stats.loads) == (count, 0, 0)
    return memory, handles, tasks


def judge(what, memory, handles, tasks, bound, count):
    found = slope(memory)
    line = f"{what}, {count} cycles: {found:+.2f} bytes each, at most {bound}; {handles} descriptors, {tasks} threads"
    assert found <= bound and len(handles) == 1 and len(tasks) == 1, (line, memory)
    return line


def cycle_fake(kind, fake_library, fake_programs):
    door, fake = doors.open_door(kind), doors.Fake(fake_library)
    x, y = np.load(fake_programs / "one.npy")
    figures = turn(door, fake_programs / "one.pte", [x], [y], 10_000)
    assert fake.violations()[0] == 0
    return judge(f"fake vendor, {kind} runtime", *figures, bound=16, count=10_000)


def cycle_openvino(kind, model, count):
    door = doors.open_door(kind)
    return judge(f"OpenVINO, {kind} runtime", *turn(door, model, *model.case(), count), bound=512, count=count)


@pytest.mark.parametrize("step", range(1, 32, 3))
def test_bytes_kept_each_cycle_show_and_bytes_kept_once_do_not(step):
    cycles = np.arange(104, 521, 13)
    once = np.where(np.arange(len(cycles)) >= step, 1 << 20, 0)
    pages = 4096
    assert slope(list(zip(cycles, once, strict=True))) == pytest.approx(0, abs=1)
    for each in (700, 100_000):
        kept = cycles * each // pages * pages + once
        assert 512 < slope(list(zip(cycles, kept, strict=True)))


@pytest.mark.parametrize("kind", ["own", "stock"])
def test_ten_thousand_cycles_keep_nothing(kind, fake_library, fake_programs, figures):
    import fresh

    figures.append(fresh.run(cycle_fake, kind, fake_library, fake_programs, timeout=200).good())


@pytest.mark.parametrize("kind", ["own", "stock"])
def test_cycles_of_a_real_vendor_keep_nothing(kind, models, figures):
    import fresh

    figures.append(fresh.run(cycle_openvino, kind, models.mlp, 520, timeout=200).good())
