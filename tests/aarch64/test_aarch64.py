"""The aarch64 wheel in the emulator, with Debian's Python and the packages that pip would give it: the own runtime on
ExecuTorch's kernels, on XNNPACK, and with loads that share.

TANDEM_AARCH64 names the folder that `./dev aarch64` made: root/, the system, and site/, the packages.
"""

import os
import pathlib
import re
import shutil
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tests/wheel"), str(ROOT / "tests/package")]
os.environ["TANDEM_WHEEL_MACHINE"] = "aarch64"

import wheels  # noqa: E402
from test_contents import *  # noqa: E402, F403  what is in this wheel is checked as in the other

LIMIT_S = 300
FAKE = pathlib.Path("tests/package/libfake_vendor.so")


@pytest.fixture(scope="module")
def python(tmp_path_factory):
    """Runs code in the emulator's Python; numbers of the packages are those of the sysroot."""
    arm = pathlib.Path(os.environ["TANDEM_AARCH64"])
    site = tmp_path_factory.mktemp("site")
    shutil.copytree(arm / "site", site, dirs_exist_ok=True)  # tandem looks for ExecuTorch beside itself
    wheels.unpack(site)
    (program,) = (arm / "root/usr/bin").glob("python3.[0-9][0-9]")

    def run(code, *arguments):
        command = ["qemu-aarch64", "-L", arm / "root", program, "-c", code, *arguments]
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("TANDEM_", "PYTHON"))}
        variables = {**kept, "PYTHONPATH": f"{site}:{ROOT / 'tests/package'}", "OPENBLAS_NUM_THREADS": "1"}
        done = subprocess.run(
            [str(word) for word in command], capture_output=True, text=True, timeout=LIMIT_S, env=variables, check=False
        )
        assert done.returncode == 0, f"{done.returncode}\n{done.stdout}\n{done.stderr}"
        return done.stdout

    return run


def test_the_binaries_fit_pages_of_64_kib(tmp_path):
    """As kernels for Arm may have; a linker or patchelf that thinks of 4 KiB makes files that do not load there."""
    binaries = wheels.unpack(tmp_path)
    assert len(binaries) == 6
    for path in binaries:
        text = subprocess.run(["readelf", "-lW", path], capture_output=True, text=True, check=True).stdout
        segments = re.findall(r"^ *LOAD +(0x\w+) (0x\w+) .* (0x\w+)$", text, re.MULTILINE)
        assert segments, path
        for offset, address, alignment in segments:
            assert int(alignment, 16) % 65536 == 0, (path, alignment)
            assert (int(address, 16) - int(offset, 16)) % 65536 == 0, (path, offset, address)


@pytest.mark.parametrize("name", ["portable_mlp", "xnnpack_mlp"])
def test_a_program_without_a_delegate_of_tandems_runs(python, name):
    code = """
import platform, sys
import numpy as np
import tandem
program = sys.argv[1]
value, wanted = np.load(program + ".forward.0.in0.npy"), np.load(program + ".forward.0.out0.npy")
(found,) = tandem.Runtime.get().load_program(program + ".pte").load_method("forward").execute([value])
np.testing.assert_allclose(np.asarray(found), wanted, rtol=1e-5, atol=1e-6)
print(platform.machine(), tandem.active())
"""
    assert python(code, ROOT / "tests/data/pte" / name) == "aarch64 True\n"


def test_two_loads_share_one_engine_and_answer_alike(python, tmp_path):
    """Programs come from this machine's own build: a fake payload has numbers of one size and order everywhere."""
    native = pathlib.Path(os.environ.get("TANDEM_BUILD", ROOT / "build/release")) / FAKE
    make = [sys.executable, ROOT / "tests/package/make_fake_programs.py", native, tmp_path]
    subprocess.run(make, check=True, timeout=LIMIT_S)
    code = """
import sys
import numpy as np
import doors
fake, door = doors.Fake(sys.argv[1]), doors.open_door("own")
one, two = door.load(sys.argv[2] + "/one.pte"), door.load(sys.argv[2] + "/one.pte")
x, y = np.load(sys.argv[2] + "/one.npy")
assert np.array_equal(one(x)[0], y) and np.array_equal(two(x)[0], y)
other = door.load(sys.argv[2] + "/two.pte")
assert not np.array_equal(other(x)[0], y)
stats = door.tandem.stats()
print(stats.loads, stats.engines, fake.count(doors.BUILD))
"""
    assert python(code, ROOT / "build/aarch64" / FAKE, tmp_path) == "3 2 2\n"
