"""Real plans in real programs: built by RTX here or kept in tests/data/rtx, wrapped in a payload and a .pte,
loaded by the command through ExecuTorch. Without a GPU that RTX supports they are refused: in the library's own
words, with nothing left behind.
"""

import json
import os
import pathlib
import struct
import subprocess
import sys

import pytest

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[1]
BUILD = pathlib.Path(os.environ.get("TANDEM_BUILD", ROOT / "build/release"))
RTX, LEAN10, LEAN11 = (os.environ.get("TANDEM_TENSORRT_" + name) for name in ("RTX", "LEAN10", "LEAN11"))
LIMIT_S = 300

pytestmark = pytest.mark.skipif(not RTX, reason="TANDEM_TENSORRT_RTX is not set")


def wrap(plan, **more):
    metadata = json.dumps(
        {
            "io_bindings": [
                {"name": "x", "dtype": "float32", "shape": [2, 8], "is_input": True},
                {"name": "y", "dtype": "float32", "shape": [2, 4], "is_input": False},
            ],
            "hardware_compatible": False,
            "device_id": 0,
            "target_platform": "linux_x86_64",
            **more,
        },
        separators=(",", ":"),
    ).encode()
    offset = 32 + len(metadata) + -len(metadata) % 16
    header = struct.pack("<4sIIIQ8s", b"TR01", 32, len(metadata), offset, len(plan), b"\1" + bytes(7))
    return (header + metadata).ljust(offset, b"\0") + plan


@pytest.fixture(scope="module")
def programs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tensorrt")
    built = folder / "built.plan"
    subprocess.run([BUILD / "tests/tensorrt/payload_tool", "build", RTX, built], check=True, timeout=LIMIT_S)
    plans = {
        "built": built.read_bytes(),
        "kept": (ROOT / "tests/data/rtx/tiny_all.engine").read_bytes(),
        "cut": built.read_bytes()[:-100],
        "no_plan": b"A" * 5000,
    }
    arguments = []
    for name, plan in plans.items():
        (folder / f"{name}.payload").write_bytes(wrap(plan))
        arguments += [folder / f"{name}.payload", folder / f"{name}.pte"]
    subprocess.run([sys.executable, HERE / "make_program.py", *arguments], check=True, timeout=LIMIT_S,
                   capture_output=True)
    return {name: folder / f"{name}.pte" for name in plans}


def tandem(library, *arguments):
    environment = {**os.environ, "TANDEM_TENSORRT_LIBRARY": library}
    environment.pop("TANDEM_TENSORRT_RUNTIME", None)
    return subprocess.run([BUILD / "tandem", *map(str, arguments)], capture_output=True, text=True,
                          timeout=LIMIT_S, env=environment)


def test_a_plan_built_here_is_inspected_without_a_library(programs):
    done = tandem("/nowhere", "inspect", programs["built"], "--json")
    assert done.returncode == 0, done.stderr
    (delegate,) = json.loads(done.stdout)["methods"][0]["delegates"]
    facts = delegate["facts"]
    assert delegate["backend"] == "TensorRTBackend"
    assert facts["kind"] == "tensorrt" and facts["plan"] == "TensorRT-RTX 1.7.1"
    assert facts["binding input 0"] == "x float32 [2, 8]"
    assert facts["target_platform"] == "linux_x86_64"


@pytest.mark.parametrize("name", ["built", "kept", "cut", "no_plan"])
def test_rtx_refuses_without_a_gpu_of_its_own_in_its_own_words(programs, name):
    done = tandem(RTX, "run", programs[name])
    assert done.returncode == 1
    (line,) = [line for line in done.stderr.splitlines() if line.startswith("tandem: ")]
    assert "deserialize the engine: " in line and "TensorRT-RTX 1.7.1 refused the plan of" in line
    if name in ("built", "kept"):
        # cudaErrorInsufficientDriver, or a GPU that RTX does not support.
        assert "cudaError 35" in line or "compute capability" in line
        assert "built by TensorRT-RTX 1.7.1" in line
        assert "hardware_compatible=false, target platform linux_x86_64" in line
    if name == "no_plan":
        assert "magic" in line.lower()


@pytest.mark.parametrize("library", [LEAN10, LEAN11])
def test_lean_refuses_it_too_and_names_itself(programs, library):
    if not library:
        pytest.skip("no lean library")
    done = tandem(library, "run", programs["built"])
    assert done.returncode == 1
    assert "TensorRT 1" in done.stderr and "(lean)" in done.stderr


def test_an_unknown_device_is_refused_by_name(tmp_path):
    (tmp_path / "payload").write_bytes(wrap(b"plan", device_id=99999999999))
    subprocess.run([sys.executable, HERE / "make_program.py", tmp_path / "payload", tmp_path / "program.pte"],
                   check=True, timeout=LIMIT_S, capture_output=True)
    done = tandem(RTX, "run", tmp_path / "program.pte")
    assert done.returncode == 1 and "device_id is 99999999999" in done.stderr
