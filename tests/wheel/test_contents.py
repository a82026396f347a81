"""What is in the wheel: nothing of the machine that built it, nothing missing, nothing exported but tandem's own."""

import os
import pathlib
import re
import zipfile

import pytest
import wheels

BUNDLED = re.compile(r"lib(cjson|crypto)-[0-9a-f]{8}\.so[.\d]*")
# What manylinux promises, and ExecuTorch's runtime, which lies in a package of its own.
ELSEWHERE = re.compile(
    r"lib(c|m|dl|pthread|gcc_s|stdc\+\+)\.so\.\d+|ld-linux-(x86-64|aarch64)\.so\.\d|libexecutorch\.so"
)


@pytest.fixture(scope="module")
def unpacked(tmp_path_factory):
    folder = tmp_path_factory.mktemp("wheel")
    return folder, wheels.unpack(folder)


def test_one_wheel_serves_each_python_from_3_10_on():
    tags = wheels.find_wheel().stem.split("-")[2:]
    assert tags[:2] == ["cp310", "abi3"]
    assert re.fullmatch(rf"(manylinux_2_\d+_{wheels.MACHINE}\.?)+", tags[2])
    with zipfile.ZipFile(wheels.find_wheel()) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith(".dist-info/WHEEL"))
        text = archive.read(name).decode()
    assert "Root-Is-Purelib: false" in text
    assert re.findall("^Tag: (.*)$", text, re.MULTILINE) == ["-".join(tags)]


def test_it_holds_the_package_and_nothing_else(unpacked):
    folder, binaries = unpacked
    version = wheels.find_wheel().name.split("-")[1]
    assert {path.name for path in folder.iterdir()} == {"tandem", f"tandem_rt-{version}.dist-info", "tandem_rt.libs"}
    sources = {path.name for path in (wheels.ROOT / "python/tandem").iterdir() if path.name != "__pycache__"}
    binary_names = {"_native.abi3.so", "bin", "lib"}
    assert {path.name for path in (folder / "tandem").iterdir()} == sources | binary_names
    libraries = {"libtandem.so.0", "libtandem_executorch.so.0"}
    assert {path.name for path in (folder / "tandem/lib").iterdir()} == libraries
    assert {path.name for path in (folder / "tandem/bin").iterdir()} == {"tandem"}
    assert os.access(folder / "tandem/bin/tandem", os.X_OK)
    bundled = {path.name for path in (folder / "tandem_rt.libs").iterdir()}
    assert len(bundled) == 2 and all(map(BUNDLED.fullmatch, bundled))
    assert {path.name for path in binaries} == {"_native.abi3.so", "tandem"} | libraries | bundled
    assert not any(path.is_symlink() for path in folder.rglob("*"))


def test_a_library_looks_only_beside_itself(unpacked):
    _, binaries = unpacked
    for path in binaries:
        for paths in wheels.dynamic_entries(path, "(?:RUNPATH|RPATH)"):
            assert all(part.startswith("$ORIGIN") for part in paths.split(":")), (path, paths)


def test_each_library_that_is_needed_is_there_or_promised(unpacked):
    folder, binaries = unpacked
    needed_of_executorch = []
    for path in binaries:
        runpath = ":".join(wheels.dynamic_entries(path, "RUNPATH") + wheels.dynamic_entries(path, "RPATH"))
        places = [pathlib.Path(part.replace("$ORIGIN", str(path.parent))) for part in runpath.split(":") if part]
        for name in wheels.dynamic_entries(path, "NEEDED"):
            inside = any((place / name).exists() for place in places)
            assert inside or ELSEWHERE.fullmatch(name), f"{path.name} needs {name}, looked for in {places}"
            if name == "libexecutorch.so":
                assert folder / "tandem/lib/../../executorch/lib" in places
                needed_of_executorch.append(path.name)
    assert "libtandem_executorch.so.0" in needed_of_executorch


def test_nothing_tells_where_it_was_built(unpacked):
    folder, _ = unpacked
    home = os.path.expanduser("~").encode()
    for path in folder.rglob("*"):
        if path.is_file():
            data = path.read_bytes()
            assert str(wheels.ROOT).encode() not in data, path
            assert home + b"/." not in data and b"/site-packages/executorch" not in data, path


def test_only_tandems_own_symbols_are_exported(unpacked):
    folder, _ = unpacked
    for name in ("libtandem.so.0", "libtandem_executorch.so.0"):
        symbols = wheels.exported_symbols(folder / "tandem/lib" / name)
        assert symbols and all(symbol.startswith("tandem_") for symbol in symbols), symbols
    assert wheels.exported_symbols(folder / "tandem/_native.abi3.so") <= {"PyInit__native", "_cffi_pypyinit__native"}
