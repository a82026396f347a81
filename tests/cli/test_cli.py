"""The `tandem` command: its texts and errors to the letter, its numbers against OpenVINO's own.

Expected outputs come from OpenVINO's Python interface run on the very payload, never from tandem. Numbers in
golden texts are replaced by N; TANDEM_GOLDEN_WRITE=1 writes the golden files anew, for a look at their diff.
"""

import ast
import hashlib
import json
import os
import pathlib
import pty
import re
import signal
import subprocess
import threading
import time

import numpy as np
import pytest

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent
TANDEM = pathlib.Path(os.environ.get("TANDEM_BUILD", ROOT / "build/release")) / "tandem"
DATA = ROOT / "tests/data/pte"
MIB = 1 << 20
LIMIT = 300  # seconds, for any one command

LOAD_KEYS = {
    "index", "shared", "users", "seconds", "digest_seconds", "build_seconds", "host_private_bytes", "device_bytes",
    "payload_bytes",
}
KEYS = {
    "program", "method", "backend", "vendor", "vendor_version", "device", "loads", "engines", "builds", "joined",
    "engine_bytes", "bytes_saved", "bytes_estimated", "outputs_equal", "vendor_deterministic", "run",
}


def tandem(*arguments, status=0, env=None, **options):
    """Runs the command, checks its exit status and that stderr and stdout keep their rules."""
    result = subprocess.run([TANDEM, *map(str, arguments)], capture_output=True, text=True, timeout=LIMIT,
                            env={**os.environ, **(env or {})}, **options)
    assert result.returncode == status, result.stderr
    errors = [line for line in result.stderr.splitlines() if line.startswith("tandem:")]
    assert len(errors) == (status != 0), result.stderr
    return result


def tandem_json(*arguments, **options):
    return json.loads(tandem(*arguments, "--json", **options).stdout)


def check_golden(name, text):
    path = HERE / "golden" / name
    text = re.sub(r"\d+(\.\d+)*", "N", text)
    text = re.sub(r"#+|█+", "", text)
    text = re.sub(r"[ ]+\n", "\n", re.sub(r"(?<=\S)  +", "  ", text))
    if os.environ.get("TANDEM_GOLDEN_WRITE"):
        path.write_text(text)
    assert text == path.read_text()


@pytest.fixture(scope="session")
def demo(tmp_path_factory):
    """The full demo, once: its document and the policy that it left."""
    pte = tmp_path_factory.mktemp("demo") / "policy.pte"
    result = tandem("demo", "--keep", pte, "--json")
    for line in result.stderr.splitlines():
        assert re.match(r"(making the policy|writing the policy|unshared: .*|shared: .*): step ", line), line
    return json.loads(result.stdout), pte


@pytest.fixture(scope="session")
def small(tmp_path_factory):
    """A policy of 8 MiB."""
    pte = tmp_path_factory.mktemp("small") / "policy.pte"
    tandem("demo", "--size", 8, "--keep", pte)
    return pte


def delegate_of(pte):
    return tandem_json("inspect", pte)["methods"][0]["delegates"][0]


def payload_of(pte):
    delegate = delegate_of(pte)
    start = delegate["file_offset"]
    return pte.read_bytes()[start:start + delegate["payload_size"]]


def write_inputs(folder, seed):
    rng = np.random.default_rng(seed)
    arrays = [
        rng.uniform(-1, 1, (1, 3, 96, 96)).astype(np.float32),
        rng.integers(0, 1024, (1, 11)),
        rng.uniform(-1, 1, (1, 8)).astype(np.float32),
    ]
    flags = []
    for index, array in enumerate(arrays):
        np.save(folder / f"in{index}.npy", array)
        flags += ["--input", folder / f"in{index}.npy"]
    return arrays, flags


# ---------------------------------------------------------------- texts


@pytest.mark.parametrize("command", ["", "run", "inspect", "doctor", "demo"])
def test_help_is_as_documented(command):
    for flag in ("--help", "-h"):
        result = tandem(*filter(None, [command]), flag)
        assert result.stderr == ""
        path = HERE / "golden" / f"help_{command or 'tandem'}.txt"
        if os.environ.get("TANDEM_GOLDEN_WRITE"):
            path.write_text(result.stdout)
        assert result.stdout == path.read_text()


def test_version_is_the_library_s():
    header = (ROOT / "include/tandem/tandem.h").read_text()
    version = re.search(r'#define TANDEM_VERSION "(.*)"', header).group(1)
    assert tandem("--version").stdout == f"tandem {version}\n"


WRONG_CALLS = [
    ([], "no command given; see 'tandem --help'"),
    (["fly"], "there is no command 'fly'; see 'tandem --help'"),
    (["--fly"], "there is no option '--fly'; see 'tandem --help'"),
    (["--version", "x"], "'x' is one argument too many; see 'tandem --help'"),
    (["run"], "run: PROGRAM is missing; see 'tandem run --help'"),
    (["run", "a", "b"], "run: 'b' is one argument too many; see 'tandem run --help'"),
    (["run", "a", "--fly"], "run: there is no option '--fly'; see 'tandem run --help'"),
    (["run", "a", "--loads"], "run: --loads needs a value; see 'tandem run --help'"),
    (["run", "a", "--loads", "0"],
     "run: --loads takes a whole number from 1 to 4096, not '0'; see 'tandem run --help'"),
    (["run", "a", "--threads=-1"],
     "run: --threads takes a whole number from 1 to 4096, not '-1'; see 'tandem run --help'"),
    (["run", "a", "--json=yes"], "run: --json takes no value; see 'tandem run --help'"),
    (["run", "a", "--option", "x"], "run: --option takes KEY=VALUE, not 'x'; see 'tandem run --help'"),
    (["run", "a", "--option", "=x"], "run: --option takes KEY=VALUE, not '=x'; see 'tandem run --help'"),
    (["inspect"], "inspect: PROGRAM is missing; see 'tandem inspect --help'"),
    (["doctor", "x"], "doctor: 'x' is one argument too many; see 'tandem doctor --help'"),
    (["demo", "--size", "1"],
     "demo: --size takes a whole number from 4 to 16384, not '1'; see 'tandem demo --help'"),
]


@pytest.mark.parametrize("arguments,message", WRONG_CALLS)
def test_wrong_calls_exit_2_with_one_line(arguments, message):
    result = tandem(*arguments, status=2)
    assert result.stdout == ""
    assert result.stderr == f"tandem: {message}\n"


def test_work_that_fails_exits_1_with_one_line(tmp_path, small):
    text = tmp_path / "text.pte"
    text.write_text("this is no program, but long enough to be looked at as one; " * 20)
    cut = tmp_path / "cut.pte"
    cut.write_bytes(small.read_bytes()[:5000])
    npy = tmp_path / "x.npy"
    np.save(npy, np.zeros((2, 2), np.float64))
    broken = tmp_path / "broken.npy"
    broken.write_bytes(npy.read_bytes()[:90])
    mlp = DATA / "portable_mlp.pte"
    cases = [
        (["run", tmp_path / "none.pte"], "none.pte"),
        (["run", text], "text.pte"),
        (["run", cut], "cut.pte"),
        (["run", tmp_path], ""),
        (["inspect", text], "text.pte"),
        (["run", mlp, "--method", "fly"], "has no method 'fly'; it has: forward"),
        (["run", mlp, "--input", npy], "input 0 is float32 in the program, the file has float64"),
        (["run", mlp, "--input", broken], "cut: its header has 118 bytes, 80 are there"),
        (["run", mlp, "--input", tmp_path / "none.npy"], "none.npy: No such file or directory"),
        (["run", mlp, "--input", npy, "--input", npy], "the method has 1 input, 2 --input given"),
        (["run", mlp, "--output-dir", npy / "x"], "cannot make the folder"),
        (["demo", "--size", 4, "--keep", tmp_path / "none" / "x.pte"], "cannot write"),
        (["demo", "--size", 4], "TMPDIR"),
    ]
    for arguments, words in cases:
        env = {"TMPDIR": str(tmp_path / "nowhere")} if words == "TMPDIR" else None
        result = tandem(*arguments, status=1, env=env)
        assert result.stdout == ""
        assert words in result.stderr
        assert result.stderr.startswith("tandem: ") and result.stderr.count("\n") == 1


def test_a_bad_load_option_is_named(small):
    assert "fly" in tandem("run", small, "--option", "fly=1", status=2).stderr
    assert "num_streams" in tandem("run", small, "--option", "num_streams=x", status=2).stderr


NAMES = {
    b"caf\xc3\xa9 \xe4\xb8\xad \xf0\x9f\x98\x80 \x7f": "caf\u00e9 \u4e2d \U0001f600 \x7f",
    b"latin-1 caf\xe9": "latin-1 caf?",
    b"cut \xe4\xb8": "cut ??",
    b"alone \x80\xbf": "alone ??",
    b"overlong \xc0\xae \xe0\x80\xae \xf0\x80\x80\xae": "overlong ?? ??? ????",
    b"surrogate \xed\xa0\x80": "surrogate ???",
    b"past the end \xf4\x90\x80\x80 \xf5\x80\x80\x80 \xff": "past the end ???? ???? ?",
    b"the ends \xed\x9f\xbf \xee\x80\x80 \xf4\x8f\xbf\xbf": "the ends \ud7ff \ue000 \U0010ffff",
}


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("command", ["inspect", "run"])
def test_json_is_json_whatever_bytes_a_path_has(name, command, tmp_path):
    path = os.fsencode(tmp_path) + b"/" + name
    os.symlink(os.fsencode(DATA / "portable_mlp.pte"), path)
    result = subprocess.run([TANDEM, command, path, "--json"], capture_output=True, timeout=LIMIT)
    assert result.returncode == 0, result.stderr
    document = json.loads(result.stdout.decode("utf-8", "strict"))
    assert document["program"] == f"{tmp_path}/{NAMES[name]}"


@pytest.mark.parametrize("arguments", [["--help"], ["--version"], ["run", "--help"],
                                       *([command, DATA / "portable_mlp.pte", *json]
                                         for command in ("inspect", "run") for json in ([], ["--json"]))])
def test_a_full_disk_is_an_error(arguments):
    with open("/dev/full", "w") as full:
        result = subprocess.run([TANDEM, *arguments], stdout=full, stderr=subprocess.PIPE, text=True, timeout=LIMIT)
    assert result.returncode == 1
    assert result.stderr == "tandem: cannot write to stdout: No space left on device\n"


# ---------------------------------------------------------------- programs without a delegate of tandem


@pytest.mark.parametrize("name", ["portable_mlp", "xnnpack_mlp"])
def test_a_program_without_tandem_runs_and_says_that_nothing_was_shared(name, tmp_path):
    pte = DATA / f"{name}.pte"
    source, expected = (np.load(DATA / f"{name}.forward.0.{what}0.npy") for what in ("in", "out"))
    np.save(tmp_path / "in.npy", source)
    document = tandem_json("run", pte, "--input", tmp_path / "in.npy", "--output-dir", tmp_path / "out", "--loads", 3)
    for index in range(3):
        np.testing.assert_allclose(np.load(tmp_path / f"out/load{index}.out0.npy"), expected, rtol=1e-5, atol=1e-6)
    assert KEYS <= document.keys()
    assert document["vendor"] is None and document["vendor_deterministic"] is None
    assert document["outputs_equal"] is True
    assert (document["engines"], document["builds"], document["bytes_saved"]) == (0, 0, 0)
    assert [load["shared"] for load in document["loads"]] == [False] * 3
    text = tandem("run", pte).stdout
    assert "nothing was shared" in text
    check_golden(f"run_{name}.txt", text.replace(str(pte), "PROGRAM"))
    check_golden(f"inspect_{name}.txt", tandem("inspect", pte).stdout.replace(str(pte), "PROGRAM"))


def test_a_dynamic_output_has_its_real_shape(tmp_path):
    source = np.load(DATA / "xnnpack_mlp_dynamic.forward.1.in0.npy")
    np.save(tmp_path / "in.npy", source)
    tandem("run", DATA / "xnnpack_mlp_dynamic.pte", "--input", tmp_path / "in.npy", "--output-dir", tmp_path)
    assert np.load(tmp_path / "load0.out0.npy").shape == (source.shape[0], 10)


def test_data_that_lies_outside_the_program_is_given_beside_it(tmp_path):
    np.save(tmp_path / "in.npy", np.ones((2, 4), np.float32))
    call = ["run", DATA.parent / "linear_external.pte", "--input", tmp_path / "in.npy", "--output-dir", tmp_path]
    tandem(*call, "--data", DATA.parent / "linear_external.ptd")
    expected = np.arange(12, dtype=np.float32).reshape(3, 4).sum(1) / 8 + [1, -1, 0.5]
    np.testing.assert_allclose(np.load(tmp_path / "load1.out0.npy"), [expected] * 2, rtol=1e-6)
    assert "linear.weight" in tandem(*call, status=1).stderr


# ---------------------------------------------------------------- the policy


def test_the_second_shared_load_costs_nothing(demo):
    document, _ = demo
    assert document.keys() == {"unshared", "shared"}
    for measurement in document.values():
        assert KEYS <= measurement.keys()
        assert all(LOAD_KEYS <= load.keys() for load in measurement["loads"])
        assert measurement["run"].keys() == {"count", "p50_ms", "p99_ms", "max_ms"}
        assert 0 < measurement["run"]["p50_ms"] <= measurement["run"]["p99_ms"] <= measurement["run"]["max_ms"]
        assert measurement["backend"] == "OpenvinoBackend" and measurement["vendor"] == "openvino"
        assert measurement["vendor_deterministic"] is True and measurement["outputs_equal"] is True
    unshared, shared = document["unshared"], document["shared"]
    in_and_out = 4 * 3 * 96 * 96 + 8 * 11 + 4 * 8 + 4 * 16 * 7
    assert unshared["loads"][1]["host_private_bytes"] >= 70 * MIB
    assert shared["loads"][1]["host_private_bytes"] <= MIB + in_and_out
    assert (unshared["builds"], unshared["engines"], unshared["bytes_saved"]) == (2, 2, 0)
    assert (shared["builds"], shared["engines"]) == (1, 1)
    assert [load["shared"] for load in unshared["loads"]] == [False, False]
    assert [load["shared"] for load in shared["loads"]] == [False, True]
    assert [load["users"] for load in shared["loads"]] == [2, 2]
    assert shared["bytes_saved"] == shared["engine_bytes"] > 150 * MIB
    assert shared["loads"][1]["build_seconds"] == 0 < shared["loads"][0]["build_seconds"]


def test_savings_that_are_an_estimate_are_said_to_be_one(small):
    document = tandem_json("run", small, "--loads", 3)
    assert document["bytes_estimated"] is True  # OpenVINO does not tell an engine's size
    assert document["engine_bytes"] == delegate_of(small)["payload_size"]
    assert document["bytes_saved"] == 2 * document["engine_bytes"]
    engine, saved = (document[key] / MIB for key in ("engine_bytes", "bytes_saved"))
    assert (f", engine about {engine:.1f} MiB, saved about {saved:.1f} MiB (estimated from the payload's size)\n"
            in tandem("run", small, "--loads", 3).stdout)
    private = tandem("run", small, "--option", "use_shared_engines=false").stdout
    assert f", engine about {engine:.1f} MiB (estimated from the payload's size): nothing was shared\n" in private
    assert tandem_json("run", DATA / "portable_mlp.pte")["bytes_estimated"] is False


def test_the_log_tells_of_the_loads_asked_for_and_not_of_the_repeat_check(small):
    result = subprocess.run([TANDEM, "run", small, "--option", "log_level=info"], capture_output=True, text=True,
                            timeout=LIMIT)
    assert result.returncode == 0, result.stderr
    lines = [line for line in result.stderr.splitlines() if "built engine" in line]
    assert len(lines) == 1 and "built engine 1 " in lines[0]


def test_sixteen_shared_loads_cost_little_more_than_one(demo):
    _, pte = demo
    document = tandem_json("run", pte, "--loads", 16, "--repeat", 1)
    in_and_out = 4 * 3 * 96 * 96 + 8 * 11 + 4 * 8 + 4 * 16 * 7
    assert sum(load["host_private_bytes"] for load in document["loads"][1:]) <= 4 * MIB + 15 * in_and_out
    assert (document["builds"], document["engines"]) == (1, 1)
    assert document["outputs_equal"] is True


def test_after_unloading_only_the_vendor_s_own_constant_stays(demo):
    _, pte = demo
    library = tandem_json("doctor")["openvino"]["path"]
    constant = json.loads(tandem("_constant", library, pte, 2).stdout)
    after = tandem_json("run", pte, "--repeat", 1)["after_unload"]
    assert (after["engines"], after["loads"]) == (0, 0)
    assert constant["loaded_bytes"] - constant["constant_bytes"] >= 70 * MIB
    assert after["host_private_bytes"] - constant["constant_bytes"] <= 4 * MIB


def test_outputs_are_openvino_s_own(small, tmp_path):
    import openvino

    arrays, flags = write_inputs(tmp_path, 1)
    compiled = openvino.Core().import_model(payload_of(small), "CPU")
    expected = compiled.create_infer_request().infer(arrays)[0]
    tandem("run", small, *flags, "--output-dir", tmp_path / "out")
    for index in range(2):
        found = np.load(tmp_path / f"out/load{index}.out0.npy")
        assert found.dtype == np.float32 and found.shape == (1, 16, 7)
        np.testing.assert_array_equal(found, expected)
    _, flags = write_inputs(tmp_path, 2)
    tandem("run", small, *flags, "--output-dir", tmp_path / "other")
    assert not np.array_equal(np.load(tmp_path / "other/load0.out0.npy"), expected)


def test_loads_made_at_once_build_one_engine(small):
    document = tandem_json("run", small, "--loads", 16, "--threads", 8)
    assert (document["builds"], document["engines"]) == (1, 1)
    assert sum(not load["shared"] for load in document["loads"]) == 1
    assert all(load["host_private_bytes"] is None for load in document["loads"])
    assert document["host_private_bytes"] > 0
    assert document["outputs_equal"] is True
    assert document["run"]["count"] == 160


def test_streams_are_warm_before_a_load_is_measured(small):
    document = tandem_json("run", small, "--loads", 4, "--option", "num_streams=2")
    assert "num_streams=2" in document["options"].lower()
    assert all(load["host_private_bytes"] <= MIB for load in document["loads"][1:])


def test_a_vendor_that_does_not_repeat_itself_gets_null(small, tmp_path):
    pte = with_payload(small, random_model(), tmp_path / "random.pte")
    document = tandem_json("run", pte)
    assert document["vendor_deterministic"] is False
    assert document["outputs_equal"] is None
    assert "does not repeat itself" in tandem("run", pte).stdout


def random_model():
    """A payload with the policy's inputs and outputs whose output is drawn anew in each run."""
    import openvino
    from openvino import opset13 as op

    image = op.parameter([1, 3, 96, 96], np.float32, name="image")
    words = op.parameter([1, 11], np.int64, name="tokens")
    state = op.parameter([1, 8], np.float32, name="state")
    drawn = op.random_uniform(op.constant(np.array([1, 16, 7])), op.constant(np.float32(0)), op.constant(np.float32(1)),
                              "f32", 0, 0)
    used = [op.reduce_sum(op.convert(x, "f32"), op.constant(np.arange(len(x.get_output_shape(0)))), False)
            for x in (image, words, state)]
    model = openvino.Model([op.add(drawn, op.add(op.add(used[0], used[1]), used[2]))], [image, words, state])
    return openvino.Core().compile_model(model, "CPU").export_model().getvalue()


def with_payload(pte, payload, path):
    """The program with another payload, written by ExecuTorch's own serializer."""
    from executorch.exir._serialize._program import deserialize_pte_binary, serialize_pte_binary

    file = deserialize_pte_binary(pte.read_bytes())
    file.program.backend_delegate_data[0].data = payload
    path.write_bytes(bytes(serialize_pte_binary(file, extract_delegate_segments=True)))
    return path


# ---------------------------------------------------------------- inspect


def test_inspect_tells_the_payload_without_a_vendor_library(small):
    import openvino

    nowhere = {"TANDEM_OPENVINO_LIBRARY": "/nowhere/libopenvino_c.so", "OPENVINO_LIB_PATH": "/nowhere"}
    document = tandem_json("inspect", small, env=nowhere)
    assert document["size"] == small.stat().st_size
    [method] = document["methods"]
    assert method["name"] == "forward"
    assert [(io["dtype"], io["max"]) for io in method["inputs"]] == [
        ("float32", [1, 3, 96, 96]), ("int64", [1, 11]), ("float32", [1, 8])]
    assert [(io["dtype"], io["max"]) for io in method["outputs"]] == [("float32", [1, 16, 7])]
    [delegate] = method["delegates"]
    payload = payload_of(small)
    assert delegate["backend"] == "OpenvinoBackend"
    assert delegate["sha256"] == delegate["engine_sha256"] == hashlib.sha256(payload).hexdigest()
    assert delegate["file_offset"] % delegate["alignment"] == 0 and delegate["alignment"] >= 128
    assert delegate["in_segment"] is True
    version = openvino.__version__.split("-")[0]
    assert delegate["facts"]["openvino_version"] == version and version.encode() in payload
    assert delegate["facts"]["instruction_set"].encode() in payload
    assert delegate["facts"]["kind"] == "openvino"


def test_inspect_shows_a_broken_payload_and_fails(small, tmp_path):
    broken = tmp_path / "broken.pte"
    data = bytearray(small.read_bytes())
    start = delegate_of(small)["file_offset"]
    data[start:start + 64] = bytes(64)
    broken.write_bytes(data)
    result = tandem("inspect", broken, "--json", status=1)
    [delegate] = json.loads(result.stdout)["methods"][0]["delegates"]
    assert result.stderr == f"tandem: {delegate['problem']}\n"


def test_inspect_shows_no_control_characters_of_names(tmp_path):
    odd = tmp_path / "odd.pte"
    data = (DATA / "portable_mlp.pte").read_bytes()
    assert b"forward" in data
    odd.write_bytes(data.replace(b"forward", b"fo\x1b[2J\a"))
    result = tandem("inspect", odd)
    assert "method fo?[2J?" in result.stdout
    assert "\x1b" not in result.stdout
    assert tandem_json("inspect", odd)["methods"][0]["name"] == "fo\x1b[2J\a"


# ---------------------------------------------------------------- doctor


def test_doctor_tells_what_is_used(demo):
    document = tandem_json("doctor")
    assert document["usable"] is True
    assert document["executorch"]["version"] == "1.5.1"
    for name in ("executorch", "openvino", "flatc"):
        assert document[name]["found"] and document[name]["mend"] is None
        assert pathlib.Path(document[name]["path"]).is_file()
    assert document["openvino"]["use"] == "serves OpenvinoBackend"
    assert demo[0]["shared"]["vendor_version"] == document["openvino"]["version"]
    for name in ("tensorrt", "tensorrt_lean", "tensorrt_rtx", "aotinductor", "cuda_backend", "cuda"):
        assert document[name]["found"] == (document[name]["mend"] is None) == (document[name]["reason"] is None)


def test_doctor_says_how_to_mend_what_is_missing():
    env = {"TANDEM_OPENVINO_LIBRARY": "/nowhere/libopenvino_c.so"}
    result = tandem("doctor", "--json", status=1, env=env)
    document = json.loads(result.stdout)
    assert document["usable"] is False and document["openvino"]["found"] is False
    assert document["openvino"]["mend"] == "correct or unset TANDEM_OPENVINO_LIBRARY=/nowhere/libopenvino_c.so"
    assert "libopenvino_c.so cannot be used: this path does not exist" in document["openvino"]["reason"]
    assert document["openvino"]["mend"] in result.stderr
    text = tandem("doctor", status=1, env=env).stdout
    assert f"to mend: {document['openvino']['mend']}\n" in text and document["openvino"]["reason"] not in text
    assert "OpenVINO      missing\n" in text and not re.search(r" $", text, re.MULTILINE)


# ---------------------------------------------------------------- demo and progress


def test_demo_prints_a_table_and_one_sentence(tmp_path):
    result = tandem("demo", "--size", 8, env={"TMPDIR": str(tmp_path)})
    check_golden("demo.txt", re.sub(r"openvino \S+", "openvino VERSION", result.stdout))
    bars = re.findall(r"MiB  (#*)$", result.stdout, re.MULTILINE)
    assert len(bars) == 4 and len(bars[3]) < len(bars[1])
    assert list(tmp_path.iterdir()) == []


def test_demo_leaves_nothing_when_it_fails(tmp_path):
    env = {"TMPDIR": str(tmp_path), "TANDEM_OPENVINO_LIBRARY": "/nowhere/libopenvino_c.so"}
    assert "/nowhere" in tandem("demo", "--keep", tmp_path / "x.pte", status=1, env=env).stderr
    assert list(tmp_path.iterdir()) == []


def test_demo_leaves_nothing_when_it_is_interrupted(tmp_path):
    for number in (signal.SIGINT, signal.SIGTERM):
        process = subprocess.Popen([TANDEM, "demo", "--size", "64", "--keep", tmp_path / "kept.pte"],
                                   stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
                                   env={**os.environ, "TMPDIR": str(tmp_path)})
        end = time.monotonic() + 60
        while not list(tmp_path.glob("*/policy.bin")) and time.monotonic() < end:
            pass
        process.send_signal(number)
        assert process.wait(60) == -number
        assert process.stdout.read() == b""
        process.stdout.close()
        assert list(tmp_path.iterdir()) == []


def test_the_policy_runs_in_the_stock_runtime(small, tmp_path):
    import openvino

    arrays, _ = write_inputs(tmp_path, 3)
    expected = openvino.Core().import_model(payload_of(small), "CPU").create_infer_request().infer(arrays)[0]
    script = tmp_path / "stock.py"
    script.write_text(
        "import sys, numpy, torch\n"
        "from executorch.runtime import Runtime\n"
        "program = Runtime.get().load_program(open(sys.argv[1], 'rb').read())\n"
        "method = program.load_method('forward')\n"
        "arrays = [torch.from_numpy(numpy.load(path)) for path in sys.argv[2:]]\n"
        "print(repr(method.execute(arrays)[0].numpy().astype('float64').ravel().tolist()))\n")
    library = tandem_json("doctor")["openvino"]["path"]
    result = subprocess.run([os.environ.get("TANDEM_TEST_PYTHON", "python3"), script, small,
                             *(tmp_path / f"in{i}.npy" for i in range(3))], capture_output=True, text=True,
                            timeout=LIMIT, env={**os.environ, "OPENVINO_LIB_PATH": library})
    assert result.returncode == 0, result.stderr
    found = np.array(ast.literal_eval(result.stdout.splitlines()[-1]))
    np.testing.assert_array_equal(found, expected.astype(np.float64).ravel())


ENDLESS = ["run", DATA / "portable_mlp.pte", "--repeat", "1000000"]  # ended by the test that starts it


def test_short_work_shows_no_progress_and_long_work_plain_lines():
    assert tandem("run", DATA / "portable_mlp.pte").stderr == ""
    process = subprocess.Popen([TANDEM, *ENDLESS], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    watch = threading.Timer(LIMIT, process.kill)
    watch.start()
    line = process.stderr.readline()
    process.kill()
    watch.cancel()
    assert process.communicate()[0] == ""
    assert re.fullmatch(r"\w[\w ]*: step \d+ of \d+, \d+ s\n", line)


def test_a_measurement_of_the_demo_says_which_one_it_is():
    process = subprocess.Popen([TANDEM, "_measure", "unshared", *ENDLESS[1:]], stdout=subprocess.PIPE,
                               stderr=subprocess.PIPE, text=True)
    watch = threading.Timer(LIMIT, process.kill)
    watch.start()
    line = process.stderr.readline()
    process.kill()
    watch.cancel()
    assert process.communicate()[0] == ""
    assert re.fullmatch(r"unshared: (loading|running): step \d+ of \d+, \d+ s\n", line)


def test_long_work_shows_a_bar_on_a_terminal():
    ours, theirs = pty.openpty()
    process = subprocess.Popen([TANDEM, *ENDLESS], stdout=subprocess.PIPE, stderr=theirs)
    watch = threading.Timer(LIMIT, process.kill)
    watch.start()
    os.close(theirs)
    seen = b""
    while b"\x1b[K" not in seen and (block := os.read(ours, 65536)):
        seen += block
    process.kill()
    watch.cancel()
    assert process.communicate()[0] == b""
    os.close(ours)
    assert re.match(rb"\r\[#*\.+\] running \d+ s\x1b\[K", seen)


@pytest.mark.parametrize("locale,block", [("C.UTF-8", "█"), ("C", "#")])
def test_bars_use_blocks_only_on_a_terminal_with_utf8(locale, block):
    ours, theirs = pty.openpty()
    process = subprocess.Popen([TANDEM, "run", DATA / "portable_mlp.pte"], stdout=theirs, stderr=subprocess.DEVNULL,
                               env={**os.environ, "LC_ALL": locale})
    os.close(theirs)
    seen = b""
    try:
        while data := os.read(ours, 65536):
            seen += data
    except OSError:
        pass
    os.close(ours)
    assert process.wait(LIMIT) == 0
    assert block in seen.decode() and ("█#".replace(block, "") not in seen.decode())


def test_another_openvino_works_and_refuses_a_foreign_payload(small, tmp_path):
    library = os.environ.get("TANDEM_OPENVINO_2025_LIBRARY")
    if not library:
        pytest.skip("TANDEM_OPENVINO_2025_LIBRARY names no libopenvino_c")
    env = {"TANDEM_OPENVINO_LIBRARY": library}
    assert "2025.4" in tandem("run", small, status=1, env=env).stderr
    document = tandem_json("demo", "--size", 16, env={**env, "TMPDIR": str(tmp_path)})
    assert document["shared"]["vendor_version"].startswith("2025.4")
    assert document["shared"]["loads"][1]["host_private_bytes"] <= 2 * MIB < document["unshared"]["loads"][1]["host_private_bytes"]
    assert document["shared"]["outputs_equal"] is True
