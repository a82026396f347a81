"""The README's programs are real: they are taken out of it, built and run as it says."""

import os
import pathlib
import re
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
BUILD = pathlib.Path(os.environ.get("TANDEM_BUILD", ROOT / "build/release"))
LIMIT_S = 120


def blocks(language):
    """The fenced blocks of a language, in their order."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    return re.findall(rf"^```{language}\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)


def the_block(language):
    found = [block for block in blocks(language) if "tandem.Runtime" not in block]  # those are tests/wheel's
    assert len(found) == 1, f"README.md has {len(found)} blocks of {language}, expected 1"
    return found[0]


def run(*command, **keywords):
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True, timeout=LIMIT_S, **keywords)
    assert done.returncode == 0, f"{command}: {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done


@pytest.fixture(scope="module")
def policy(tmp_path_factory):
    """The demo's policy, small; TANDEM_DEMO_PTE names one that is there already."""
    if "TANDEM_DEMO_PTE" in os.environ:
        return pathlib.Path(os.environ["TANDEM_DEMO_PTE"])
    path = tmp_path_factory.mktemp("policy") / "policy.pte"
    run(BUILD / "tandem", "demo", "--size", "4", "--keep", path)
    return path


@pytest.fixture
def clone(tmp_path, policy):
    """A folder that looks as a built clone does to the README's commands."""
    (tmp_path / "include").symlink_to(ROOT / "include")
    (tmp_path / "build").mkdir()
    (tmp_path / "build/release").symlink_to(BUILD)
    (tmp_path / "policy.pte").symlink_to(policy)
    return tmp_path


def test_c_program_is_built_and_run_by_the_commands_beside_it(clone):
    (clone / "two_arms.c").write_text(the_block("c"))
    done = run("bash", "-euo", "pipefail", "-c", the_block("sh"), cwd=clone)
    assert done.stdout == "2 loads, 1 engine\n"
    assert "`2 loads, 1 engine`" in (ROOT / "README.md").read_text(encoding="utf-8")


def test_c_program_is_free_of_warnings(clone):
    (clone / "two_arms.c").write_text(the_block("c"))
    run("cc", "-std=c11", "-Wall", "-Wextra", "-Wpedantic", "-Wconversion", "-Werror", "-Iinclude", "-fsyntax-only",
        "two_arms.c", cwd=clone)


def test_c_program_tells_what_is_wrong(clone):
    (clone / "two_arms.c").write_text(the_block("c"))
    compile_line = the_block("sh").splitlines()[0]
    run("bash", "-euo", "pipefail", "-c", compile_line, cwd=clone)
    done = subprocess.run(["./two_arms", "absent.pte"], cwd=clone, capture_output=True, text=True, timeout=LIMIT_S)
    assert done.returncode == 1
    assert "absent.pte" in done.stderr and done.stderr.count("\n") == 1


def test_python_program_shares_an_engine_on_the_stock_runtime(clone):
    (clone / "two_arms.py").write_text(the_block("python"))
    environment = dict(os.environ, TANDEM_OPT_LOG_LEVEL="info")
    done = run(sys.executable, "two_arms.py", "policy.pte", cwd=clone, env=environment)
    assert done.stdout == "True\n"
    told = [line for line in done.stderr.splitlines() if line.startswith("tandem: ")]
    assert len(told) == 2, done.stderr
    assert "built engine 1 " in told[0] and "shares engine 1, 2 loads now" in told[1]


def test_files_that_documents_link_to_exist():
    documents = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
    for document in documents:
        for target in re.findall(r"\]\(([^)#]+)[^)]*\)", document.read_text(encoding="utf-8")):
            if "://" not in target:
                assert (document.parent / target).exists(), f"{document.name} links to {target}, which is not there"


def test_commands_of_the_readme_are_known_to_dev():
    usage = run("bash", ROOT / "dev", "help").stderr
    for command in re.findall(r"\./dev (\w+)", (ROOT / "README.md").read_text(encoding="utf-8")):
        assert re.search(rf"^  ([\w, ]+, )?{command}\b", usage, re.MULTILINE), f"./dev has no {command}"


def test_dev_tells_that_it_builds_and_says_nothing_when_all_is_built(tmp_path):
    """Only cmake stands in for the real one: it leaves what a build leaves."""
    (tmp_path / "requirements").symlink_to(ROOT / "requirements")
    (tmp_path / "dev").write_bytes((ROOT / "dev").read_bytes())
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/cmake").write_text("#!/bin/sh\nmkdir -p build/release && touch build/release/build.ninja\n")
    (tmp_path / "bin/cmake").chmod(0o755)
    lines = (ROOT / "dev").read_text().split("# ---------------------------------------------------------------- build")
    ready = lines[0] + '\nmkdir -p "$(venv_path test)/lib/python3/site-packages"; touch "$(venv_path test)/.ready"\n'
    (tmp_path / "ready").write_text(ready)
    environment = dict(os.environ, PATH=f"{tmp_path}/bin:{os.environ['PATH']}", XDG_CACHE_HOME=str(tmp_path / "cache"))
    run("bash", tmp_path / "ready", env=environment)
    said = [run("bash", tmp_path / "dev", "build", env=environment).stderr for _ in range(2)]
    assert said == ["dev: building release; the first time may take minutes\n", ""]


def test_files_that_documents_name_exist():
    """docs/ name sources in `code`; a renamed file must not leave a wrong name behind."""
    for document in (ROOT / "docs/design.md", ROOT / "docs/vendors.md"):
        names = re.findall(r"`((?:src|vendors|adapters|cli|tests|include|docs|cmake)/[\w./-]*\w\.(?:c|cc|h|md|py|map))`",
                           document.read_text(encoding="utf-8"))
        assert names, f"{document.name} names no file"
        for name in names:
            if "NAME" in name:  # stands for a file that a vendor author makes
                continue
            assert (ROOT / name).exists(), f"{document.name} names {name}, which is not there"
