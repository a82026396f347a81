"""export.py: its programs, and what it says where it cannot make one."""

import importlib.util
import shutil

import pytest


def test_programs_run_alike_in_both_runtimes(exported, example):
    found = example.run("both_runtimes.py", *exported.values()).stdout.splitlines()
    assert found == ["small 1 1", "aotinductor 1 1", "xnnpack 0 0"]


def test_a_program_that_may_be_loaded_is_replaced_not_written_into(exported):
    for path in exported.values():
        assert path.with_suffix(".before").read_bytes() == b"in use"
        assert path.stat().st_size > 1 << 20


@pytest.mark.skipif(importlib.util.find_spec("torch_tensorrt") is not None, reason="torch_tensorrt is installed")
def test_a_missing_exporter_is_named_in_one_line(example, tmp_path):
    done = example.run("export.py", tmp_path / "a.pte", "--backend", "tensorrt", status=1)
    assert done.stderr.splitlines()[-1] == (
        "export.py: the package torch_tensorrt is not installed: pip install torch-tensorrt"
    )
    assert not list(tmp_path.iterdir())


@pytest.mark.skipif(shutil.which("nvidia-smi") is not None, reason="there may be a GPU")
def test_a_missing_gpu_is_told_in_one_line(example, tmp_path):
    done = example.run("export.py", tmp_path / "a.pte", "--backend", "cuda", status=1)
    assert "export.py: exporting for cuda needs an NVIDIA GPU" in done.stderr.splitlines()[-1]
    assert not list(tmp_path.iterdir())


def test_a_model_that_is_not_there_is_told_in_one_line(example, tmp_path):
    done = example.run("export.py", tmp_path / "a.pte", "--model", "json:nothing", status=1)
    assert done.stderr == "export.py: --model json:nothing: module 'json' has no attribute 'nothing'\n"
    done = example.run("export.py", tmp_path / "a.pte", "--model", "time:time", status=1)
    assert done.stderr.startswith("export.py: --model time:time: it returned a float, expected a module and")
    example.run("export.py", tmp_path / "a.pte", "--model", "json", status=2)
