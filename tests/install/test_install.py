"""A program outside the tree can use an installed tandem: through CMake and through pkg-config."""

import json
import os
import pathlib
import re
import subprocess

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
BUILD = pathlib.Path(os.environ.get("TANDEM_BUILD", ROOT / "build/release"))
LIMIT_S = 120


def run(*command, **keywords):
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True, timeout=LIMIT_S, **keywords)
    assert done.returncode == 0, f"{command}: {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def prefix(tmp_path_factory):
    """An install that was moved after it was made: nothing in it may name its first place."""
    made = tmp_path_factory.mktemp("install") / "made"
    run("cmake", "--install", BUILD, "--prefix", made)
    moved = made.parent / "moved"
    made.rename(moved)
    return moved


@pytest.fixture(scope="module")
def program(tmp_path_factory):
    """A small policy in a .pte, made by the built command."""
    path = tmp_path_factory.mktemp("program") / "policy.pte"
    run(BUILD / "tandem", "demo", "--size", "4", "--keep", path)
    return path


def test_cmake_consumer_shares_an_engine_between_two_loads(prefix, program, tmp_path):
    run("cmake", "-G", "Ninja", "-S", ROOT / "examples/cmake", "-B", tmp_path, f"-DCMAKE_PREFIX_PATH={prefix}")
    run("cmake", "--build", tmp_path)
    assert run(tmp_path / "two_loads", program) == "2 loads, 1 engines, 1 builds\n"


def test_cmake_consumer_tells_what_is_wrong(prefix, tmp_path):
    run("cmake", "-G", "Ninja", "-S", ROOT / "examples/cmake", "-B", tmp_path, f"-DCMAKE_PREFIX_PATH={prefix}")
    run("cmake", "--build", tmp_path)
    done = subprocess.run([tmp_path / "two_loads", "absent.pte"], capture_output=True, text=True, timeout=LIMIT_S)
    assert done.returncode == 1
    assert done.stderr.startswith("two_loads: ") and "absent.pte" in done.stderr


def test_pkg_config_consumer_lists_the_vendors(prefix, tmp_path):
    environment = dict(os.environ, PKG_CONFIG_PATH=str(next(prefix.rglob("tandem.pc")).parent))
    flags = run("pkg-config", "--cflags", "--libs", "tandem", env=environment).split()
    assert run("pkg-config", "--modversion", "tandem", env=environment).strip() == header_version()
    library_folder = next(flag[2:] for flag in flags if flag.startswith("-L"))
    run("cc", "-std=c11", "-Wall", "-Werror", ROOT / "examples/pkg-config/vendors.c", *flags,
        f"-Wl,-rpath,{library_folder}", "-o", tmp_path / "vendors")
    lines = run(tmp_path / "vendors").splitlines()
    assert lines[0] == "tandem " + header_version()
    assert any(re.match(r"openvino: 20\d\d\.", line) for line in lines[1:])


def test_installed_command_runs(prefix, program):
    report = json.loads(run(prefix / "bin/tandem", "run", program, "--loads", "2", "--json"))
    assert (report["engines"], report["builds"]) == (1, 1)


def test_installed_headers_are_the_public_ones(prefix):
    names = {path.name for path in (prefix / "include/tandem").iterdir()}
    assert names == {"tandem.h", "vendor.h", "program.h"}


def header_version():
    text = (ROOT / "include/tandem/tandem.h").read_text()
    return re.search(r'#define TANDEM_VERSION "(.*)"', text).group(1)
