"""control_loop.py and robot_node.py: two threads, one engine; and how every example is called."""

import re

import pytest


@pytest.mark.parametrize("name", ["export.py", "control_loop.py", "robot_node.py", "serve.py"])
def test_every_example_tells_how_it_is_called(name, example):
    done = example.run(name, "--help")
    assert done.stdout.startswith(f"usage: {name}") and "Exit status: 0" in done.stdout and not done.stderr
    assert f"usage: {name}" in example.run(name, "--no-such-flag", status=2).stderr


def test_two_arms_run_on_one_engine(policy, example):
    text = example.run("control_loop.py", policy, "--seconds", 2, "--rate", 50, "--option", "num_threads=1").stdout
    for arm in ("left", "right"):
        cycles, missed, *figures = re.search(rf"^{arm} (.*)$", text, re.MULTILINE)[1].split()
        assert int(cycles) + int(missed) == 100 and int(cycles) > 0
        period, run = [float(figure) for figure in figures[:3]], [float(figure) for figure in figures[3:]]
        assert period == sorted(period) and run == sorted(run) and run[0] > 0
    stats = dict(re.findall(r"^(engines|loads|builds|hits|failures) +(\d+)$", text, re.MULTILINE))
    assert stats == {"engines": "1", "loads": "2", "builds": "1", "hits": "1", "failures": "0"}


def test_two_arms_take_tandems_options(policy, example):
    text = example.run("control_loop.py", policy, "--seconds", 0.1, "--option", "use_shared_engines=false").stdout
    assert re.search(r"^engines +2$", text, re.MULTILINE)
    assert "'speed'" in example.run("control_loop.py", policy, "--option", "speed=1", status=2).stderr


def test_two_nodes_move_two_robots_with_one_engine_and_give_it_back(policy, example):
    lines = example.run("robot_node.py", policy, "--seconds", 2).stdout.splitlines()
    assert lines[0] == "configured: 2 loads, 1 engine(s), 1 build(s)"
    for arm, line in zip(("left", "right"), lines[1:3], strict=True):
        moves, joints = re.fullmatch(rf"/{arm}: (\d+) moves, joints at \[(.*)\]", line).groups()
        assert int(moves) > 10 and any(abs(float(joint)) > 0.01 for joint in joints.split(","))
    assert lines[3] == "cleaned up: 0 loads, 0 engines"


@pytest.mark.parametrize("name", ["control_loop.py", "robot_node.py"])
def test_a_program_that_is_not_there_is_told_in_one_line(name, example, tmp_path):
    done = example.run(name, tmp_path / "none.pte", status=1)
    (line,) = done.stderr.splitlines()
    assert line.startswith(f"{name}: ") and "none.pte: No such file or directory" in line


def test_loads_are_given_back_though_each_run_failed(example, tmp_path):
    path = tmp_path / "other.pte"
    example.run("export.py", path, "--model", "models:build_other")
    done = example.run("robot_node.py", path, "--seconds", 1, status=1)
    assert done.stdout.splitlines()[-1] == "cleaned up: 0 loads, 0 engines"
    (line,) = done.stderr.splitlines()
    assert line.startswith("robot_node.py: input") and line.endswith(" more)")
