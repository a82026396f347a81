"""`./dev bench` runs: its figures mean nothing here, but its programs and their calls are those of the measurements."""

import json
import os
import pathlib
import re
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]


def run(*command, **kwargs):
    return subprocess.run(command, capture_output=True, text=True, timeout=300, **kwargs)


def test_the_comparison_answers_its_three_questions(tmp_path):
    output = tmp_path / "compare.json"
    arguments = ["--model", "mlp", "--rounds", "1", "--seconds", "0.05", "--output", output]
    done = run(sys.executable, ROOT / "bench/compare.py", *arguments)
    assert done.returncode in (0, 1) and output.exists(), done.stderr  # 1: a limit is not kept in so short a time
    result = json.loads(output.read_text())["models"]["mlp"]
    assert set(result["kept"]) == {"alone", "pair", "load"}
    for value in (result["alone"]["ratio"], result["pair"]["ratio"], result["load"]["second_ms"]):
        assert value["median"] > 0


@pytest.mark.parametrize("words", ["bench --rounds 2", "bench policy --rounds 2"])
def test_dev_starts_a_script_that_is_there_and_takes_its_arguments(words, tmp_path):
    text = (ROOT / "dev").read_text(encoding="utf-8")
    function = re.search(r"^cmd_bench\(\) \{\n.*?^\}$", text, re.MULTILINE | re.DOTALL)
    assert function, "dev has no cmd_bench"
    (tmp_path / "dev").write_text('#!/bin/sh\necho "$@"\n')
    (tmp_path / "dev").chmod(0o755)
    stubs = "need_venv() { :; }; venv_path() { echo venv; }; site_packages() { echo packages; }\n"
    arguments = words.split()[1:]
    done = run("bash", "-euc", stubs + function.group() + '\ncmd_bench "$@"', "dev", *arguments, cwd=tmp_path)
    command, script, *rest = done.stdout.split()
    assert command == "python" and rest == ["--rounds", "2"], done.stdout + done.stderr
    done = run(sys.executable, ROOT / script, *rest, "--help", env={**os.environ, "TANDEM_POLICY_PACKAGES": ""})
    assert done.returncode == 0 and "--rounds" in done.stdout, done.stderr
