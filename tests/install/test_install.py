"""A program outside the tree can use an installed tandem: through CMake and through pkg-config."""

import importlib.util
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


@pytest.fixture(scope="module")
def executorch():
    """The folder of the executorch package."""
    return pathlib.Path(importlib.util.find_spec("executorch").submodule_search_locations[0])


@pytest.fixture(scope="module")
def consumers(prefix, executorch, tmp_path_factory):
    """examples/cmake, built."""
    folder = tmp_path_factory.mktemp("consumers")
    run("cmake", "-G", "Ninja", "-S", ROOT / "examples/cmake", "-B", folder,
        f"-DCMAKE_PREFIX_PATH={prefix};{executorch}")
    run("cmake", "--build", folder)
    return folder


def test_c_consumer_shares_an_engine_between_two_loads(consumers, program):
    assert run(consumers / "two_loads", program) == "2 loads, 1 engines, 1 builds\n"


def test_cxx_host_shares_an_engine_between_two_modules(consumers, program):
    assert run(consumers / "two_modules", program) == "2 loads, 1 engines, 1 builds, outputs equal\n"


@pytest.mark.parametrize("name", ["two_loads", "two_modules"])
def test_cmake_consumer_tells_what_is_wrong(name, consumers):
    done = subprocess.run([consumers / name, "absent.pte"], capture_output=True, text=True, timeout=LIMIT_S)
    assert done.returncode == 1
    line = done.stderr.splitlines()[-1]
    assert line.startswith(f"{name}: ") and "absent.pte" in line


def test_cxx_host_tells_that_the_stock_backend_came_first(prefix, executorch, consumers, program, tmp_path):
    """The same object, with the libraries in the order that examples/cmake avoids."""
    folders = [next(prefix.rglob("libtandem.so")).parent, executorch / "lib"]
    run("c++", consumers / "CMakeFiles/two_modules.dir/two_modules.cc.o", *(f"-L{folder}" for folder in folders),
        "-Wl,--no-as-needed", "-ltandem_executorch", "-ltandem", "-lexecutorch_backend_openvino", "-lexecutorch",
        *(f"-Wl,-rpath,{folder}" for folder in folders), "-o", tmp_path / "stock_first")
    done = subprocess.run([tmp_path / "stock_first", program], capture_output=True, text=True, timeout=LIMIT_S)
    assert done.returncode == 1 and not done.stdout
    warning, error = done.stderr.splitlines()
    assert error.startswith("two_modules: tandem: another backend is registered as OpenvinoBackend, so programs for it ")
    assert warning.partition("warning: ")[2] == error.partition("tandem: ")[2]


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
