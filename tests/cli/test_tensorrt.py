"""The `tandem` command and TensorRT: over the stand-in libraries, and over the real ones as far as they go here.

The programs are one fixture of tests/data with another backend id and payload, written by ExecuTorch's own
serializer; the plans are the stand-in's. What the demo builds is made by the real RTX, whose builder needs no GPU.
"""

import hashlib
import json
import os
import pathlib
import re
import subprocess
import sys

import numpy as np
import pytest

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent
BUILD = pathlib.Path(os.environ.get("TANDEM_BUILD", ROOT / "build/release"))
STANDIN = BUILD / "tests/standin"
RTX, LEAN11 = (os.environ.get("TANDEM_TENSORRT_" + name) for name in ("RTX", "LEAN11"))
MIB = 1 << 20
LIMIT = 300

sys.path.insert(0, str(ROOT / "tests/standin"))
import plan as standin  # noqa: E402

needs_rtx = pytest.mark.skipif(not RTX, reason="TANDEM_TENSORRT_RTX is not set")


def stand_in(layout="11", **more):
    file = {"10": "libnvinfer.so.10", "11": "libnvinfer.so.11", "rtx": "libtensorrt_rtx.so.1",
            "lean": "libnvinfer_lean.so.11"}[layout]
    return {"TANDEM_TENSORRT_LIBRARY": str(STANDIN / layout / file),
            "TANDEM_CUDA_LIBRARY": str(STANDIN / "cuda/libcuda.so.1"), **more}


def tandem(*arguments, status=0, env=None):
    """Runs the command and checks its exit status and that a failure is one line."""
    environment = {**os.environ, **(env or {})}
    if "TANDEM_TENSORRT_RUNTIME" not in (env or {}):
        environment.pop("TANDEM_TENSORRT_RUNTIME", None)
    result = subprocess.run([BUILD / "tandem", *map(str, arguments)], capture_output=True, text=True, timeout=LIMIT,
                            env=environment)
    assert result.returncode == status, result.stderr
    errors = [line for line in result.stderr.splitlines() if line.startswith("tandem:")]
    assert len(errors) == (status != 0), result.stderr
    return result


def tandem_json(*arguments, **options):
    return json.loads(tandem(*arguments, "--json", **options).stdout)


def write_program(path, payload, specs=(), named=None):
    """forward(x[2, 4]) -> y[2, 4] with one delegate for TensorRTBackend; `named` is bytes by key, in the program."""
    from executorch.exir._serialize._named_data_store import NamedDataStore
    from executorch.exir._serialize._program import deserialize_pte_binary, serialize_pte_binary
    from executorch.exir.schema import CompileSpec

    file = deserialize_pte_binary((ROOT / "tests/data/demo_affine.pte").read_bytes())
    delegate = file.program.execution_plan[0].delegates[0]
    delegate.id = "TensorRTBackend"
    delegate.compile_specs = [CompileSpec(key=key, value=value) for key, value in specs]
    file.program.backend_delegate_data[0].data = payload
    store = NamedDataStore()
    for key, data in (named or {}).items():
        store.add_named_data(key, data)
    file.named_data = store.get_named_data_store_output()
    path.write_bytes(bytes(serialize_pte_binary(file, extract_delegate_segments=True)))
    return path


WIDE = 1024
WEIGHTS = 4 * (4 * WIDE + WIDE + 2 * (WIDE * WIDE + WIDE) + WIDE * 4 + 4)  # bytes of float32


@pytest.fixture(scope="module")
def wide_plan():
    return standin.mlp("wide", [4, WIDE, WIDE, WIDE, 4], rows=(2, 2, 2), seed=7, flags=standin.STREAMABLE)


@pytest.fixture(scope="module")
def wide(tmp_path_factory, wide_plan):
    return write_program(tmp_path_factory.mktemp("wide") / "wide.pte", standin.payload(wide_plan))


# ---------------------------------------------------------------- run


@pytest.mark.parametrize("layout", ["10", "11", "rtx", "lean"])
def test_a_shared_load_costs_no_device_memory_for_weights(wide, layout):
    shared = tandem_json("run", wide, "--loads", 3, env=stand_in(layout))
    private = tandem_json("run", wide, "--loads", 3, "--option", "use_shared_engines=false", env=stand_in(layout))
    assert shared["vendor"] == "tensorrt" and shared["device"] == "cuda:0"
    assert (shared["engines"], private["engines"]) == (1, 3)
    assert shared["outputs_equal"] is True and private["outputs_equal"] is True
    assert [load["shared"] for load in shared["loads"]] == [False, True, True]
    for load in private["loads"] + shared["loads"][:1]:
        assert WEIGHTS <= load["device_memory_bytes"] < WEIGHTS + 2 * MIB
    for load in shared["loads"][1:]:
        assert load["device_memory_bytes"] < MIB
    assert shared["after_unload"]["device_memory_bytes"] < MIB
    text = tandem("run", wide, env=stand_in(layout)).stdout
    assert "device memory" in text and "private memory" not in text


def test_budgets_are_told_and_part_engines(wide, tmp_path, wide_plan):
    env = stand_in(STANDIN_AUTOMATIC_BUDGET="1048576")
    assert [load["budget"] for load in tandem_json("run", wide, env=env)["loads"]] == [MIB, MIB]
    asked = tandem_json("run", wide, "--option", "weight_streaming_budget=2097152", env=env)
    assert [load["budget"] for load in asked["loads"]] == [2 * MIB, 2 * MIB]
    program = write_program(tmp_path / "spec.pte", standin.payload(wide_plan), [("weight_streaming_budget", b"3145728")])
    assert [load["budget"] for load in tandem_json("run", program, env=env)["loads"]] == [3 * MIB] * 2
    assert "weight_streaming_budget" in tandem("run", wide, "--option", "weight_streaming_budget=-1", status=2,
                                               env=env).stderr


def test_a_program_for_the_cpu_has_no_device_memory_and_no_budget():
    document = tandem_json("run", ROOT / "tests/data/pte/portable_mlp.pte", env=stand_in())
    assert document["device_memory_bytes"] is None and document["after_unload"]["device_memory_bytes"] is None
    assert all(load["device_memory_bytes"] is None and load["budget"] is None for load in document["loads"])


def test_a_plan_for_another_gpu_is_refused_with_both_named(tmp_path):
    plan = standin.mlp("other", [4, 4], rows=(2, 2, 2), compute=80)
    program = write_program(tmp_path / "other.pte", standin.payload(plan))
    line = tandem("run", program, status=1, env=stand_in()).stderr
    assert "8.0" in line and "9.0" in line and "cuda" in line.lower()


def test_a_plan_without_its_weights_is_refused(tmp_path):
    plan = standin.mlp("stripped", [4, 4], rows=(2, 2, 2), flags=standin.REFITTABLE | standin.STRIPPED)
    program = write_program(tmp_path / "stripped.pte", standin.payload(plan))
    assert "weights" in tandem("run", program, status=1, env=stand_in()).stderr


# ---------------------------------------------------------------- options


def test_option_names_and_values_are_checked_where_nothing_is_tandem_s():
    program = ROOT / "tests/data/pte/portable_mlp.pte"
    for option, words in [("fly=1", "option 'fly' is unknown"), ("share_scratch=perhaps", "share_scratch"),
                          ("num_streams=x", "num_streams"), ("weight_streaming_budget=-5", "weight_streaming_budget")]:
        result = tandem("run", program, "--option", option, status=2)
        assert words in result.stderr and result.stderr.startswith("tandem: --option: ")
    assert "twice" in tandem("run", program, "--option", "num_streams=1", "--option", "num_streams=2", status=2).stderr
    tandem("run", program, "--option", "share_scratch=false", "--option", "num_streams=2")


# ---------------------------------------------------------------- inspect


def test_inspect_tells_bindings_aliases_and_the_budget(tmp_path):
    specs = [("weight_streaming_budget", b"4096"), ("blob", b"\x00\x01\x02"), ("empty", b"")]
    payload = standin.payload(standin.sample("cache"), device_id=1)
    program = write_program(tmp_path / "cache.pte", payload, specs)
    nowhere = {"TANDEM_TENSORRT_LIBRARY": "/nowhere/libnvinfer.so.11", "TANDEM_CUDA_LIBRARY": "/nowhere/libcuda.so.1"}
    delegate = tandem_json("inspect", program, env=nowhere)["methods"][0]["delegates"][0]
    facts = delegate["facts"]
    assert (facts["kind"], facts["format"], facts["device_id"]) == ("tensorrt", "TR02", "1")
    assert facts["binding input 0"].startswith("x") and facts["binding input 1"].startswith("cache")
    assert facts["alias 0"] == "output cache_out updates input cache (kv_cache_update)"
    assert delegate["compile_specs"] == [
        {"key": "weight_streaming_budget", "value": "4096", "size": 4},
        {"key": "blob", "value": None, "size": 3},
        {"key": "empty", "value": "", "size": 0},
    ]
    text = tandem("inspect", program, env=nowhere).stdout
    assert "    compile spec weight_streaming_budget: 4096\n" in text and "    compile spec blob: 3 bytes\n" in text


@pytest.mark.parametrize("place", ["payload", "program", "nowhere"])
def test_inspect_tells_the_sha256_that_a_load_expects(tmp_path, wide_plan, place):
    if place == "payload":
        program = write_program(tmp_path / "p.pte", standin.payload(wide_plan))
    else:
        named = {"the plan": wide_plan} if place == "program" else {}
        program = write_program(tmp_path / "p.pte", standin.payload(wide_plan, engine_key="the plan"), named=named)
    delegate = tandem_json("inspect", program)["methods"][0]["delegates"][0]
    text = tandem("inspect", program).stdout
    if place == "nowhere":
        assert delegate["engine_sha256"] is None and "engine sha256: not known" in text and "--data" in text
        return
    expected = hashlib.sha256(wide_plan).hexdigest()
    assert delegate["engine_sha256"] == expected != delegate["sha256"]
    assert f"    engine sha256: {expected}\n" in text
    tandem("run", program, "--option", f"expect_sha256={expected}", env=stand_in())
    refused = tandem("run", program, "--option", f"expect_sha256={'0' * 64}", status=1, env=stand_in()).stderr
    assert expected in refused


# ---------------------------------------------------------------- doctor


def test_doctor_tells_the_library_the_driver_and_the_gpus():
    document = tandem_json("doctor", env=stand_in(STANDIN_CUDA_DEVICES="3", STANDIN_CUDA_MEMORY=str(1 << 30)))
    assert document["tensorrt"]["found"] and document["tensorrt"]["version"].startswith("TensorRT 11.4.0")
    assert document["tensorrt"]["path"].endswith("libnvinfer.so.11")
    assert document["tensorrt"]["use"] == "serves TensorRTBackend"
    cuda = document["cuda"]
    assert cuda["found"] and cuda["version"] == "13.0" and len(cuda["devices"]) == 3
    assert cuda["devices"][2]["index"] == 2 and cuda["devices"][2]["compute_capability"] == "9.0"
    assert cuda["devices"][2]["memory_bytes"] == 1 << 30 and cuda["devices"][2]["name"]
    assert "GPU to load" not in (document["cuda_backend"]["use"] or "")
    assert "cuda:2 " in tandem("doctor", env=stand_in(STANDIN_CUDA_DEVICES="3")).stdout


def test_doctor_tells_what_is_missing_of_a_gpu():
    document = tandem_json("doctor", env={"TANDEM_CUDA_LIBRARY": "/nowhere/libcuda.so.1"})
    cuda, backend = document["cuda"], document["cuda_backend"]
    assert backend["use"] == ("serves CudaBackend, but there is no GPU to load them on" if backend["found"] else None)
    assert not cuda["found"] and "/nowhere/libcuda.so.1" in cuda["mend"] and cuda["devices"] == []
    document = tandem_json("doctor", env=stand_in(STANDIN_CUDA_DEVICES="0"))
    assert not document["cuda"]["found"] and document["cuda"]["path"].endswith("libcuda.so.1")
    assert "no GPU" in document["tensorrt"]["use"]


def test_doctor_refuses_an_unknown_version_by_its_number():
    tensorrt = tandem_json("doctor", env=stand_in(STANDIN_NVINFER_VERSION="120000"))["tensorrt"]
    assert not tensorrt["found"] and "12.0" in tensorrt["reason"]
    assert tensorrt["mend"].startswith("correct or unset TANDEM_TENSORRT_LIBRARY=")


@pytest.mark.parametrize("layout,filled", [("11", None), ("lean", "tensorrt_lean"), ("rtx", "tensorrt_rtx")])
def test_doctor_looks_at_no_product_beside_a_named_library(layout, filled):
    document = tandem_json("doctor", env=stand_in(layout))
    text = tandem("doctor", env=stand_in(layout)).stdout
    for name, title in [("tensorrt_lean", "TensorRT lean"), ("tensorrt_rtx", "TensorRT RTX ")]:
        if name == filled:
            assert document[name] == document["tensorrt"] and document[name]["found"]
        else:
            assert not document[name]["found"] and document[name]["mend"] is None
            assert document[name]["reason"] == "not looked at: TANDEM_TENSORRT_LIBRARY is set"
            assert f"{title} {document[name]['reason']}\n" in text


def test_doctor_gives_one_install_for_each_product_that_is_missing():
    env = {"TANDEM_TENSORRT_LIBRARY": "", "TANDEM_CUDA_LIBRARY": ""}
    for runtime in ("", "lean", "rtx", "fly"):
        document = tandem_json("doctor", env={**env, "TANDEM_TENSORRT_RUNTIME": runtime})
        package = {"": "tensorrt-cu13", "lean": "tensorrt-lean-cu13", "rtx": "tensorrt-rtx-cu13"}.get(runtime)
        whole = f"pip install {package}, or set TANDEM_TENSORRT_LIBRARY" if package else \
            "correct or unset TANDEM_TENSORRT_RUNTIME=fly"
        for name, mend in [("tensorrt", whole), ("tensorrt_lean", "pip install tensorrt-lean-cu13"),
                           ("tensorrt_rtx", "pip install tensorrt-rtx-cu13"),
                           ("cuda", "install the NVIDIA driver, or set TANDEM_CUDA_LIBRARY")]:
            if not document[name]["found"] and not (name == "cuda" and document[name]["path"]):
                assert document[name]["mend"] == mend and document[name]["reason"]


@needs_rtx
def test_doctor_shows_the_products_beside_the_one_in_use():
    packages = pathlib.Path(RTX).parent.parent
    env = {"PYTHONPATH": str(packages), "TANDEM_CUDA_LIBRARY": "/nowhere/libcuda.so.1"}
    document = tandem_json("doctor", env=env)
    assert document["tensorrt"]["path"] == document["tensorrt_lean"]["path"] == LEAN11
    assert document["tensorrt"]["version"].startswith("TensorRT 11.4.0 (lean)")
    assert "no GPU" in document["tensorrt"]["use"]
    assert document["tensorrt_rtx"]["path"] == RTX and "TANDEM_TENSORRT_RUNTIME=rtx" in document["tensorrt_rtx"]["use"]
    forced = tandem_json("doctor", env={**env, "TANDEM_TENSORRT_RUNTIME": "rtx"})
    assert forced["tensorrt"]["version"].startswith("TensorRT-RTX 1.7.1") and forced["tensorrt_lean"]["found"]


# ---------------------------------------------------------------- demo


def test_the_demo_without_gpu_or_builder_says_one_line(tmp_path):
    env = {"TANDEM_CUDA_LIBRARY": "/nowhere/libcuda.so.1"}
    assert "runs on a GPU" in tandem("demo", "--vendor", "tensorrt", status=1, env=env).stderr
    keep = ["--keep", tmp_path / "p.pte"]
    line = tandem("demo", "--vendor", "tensorrt", *keep, status=1, env=stand_in("lean")).stderr
    assert "has no builder" in line and "pip install tensorrt-cu13" in line
    line = tandem("demo", "--vendor", "tensorrt", *keep, status=1, env=stand_in()).stderr
    assert "createInferBuilder failed" in line and "there is no builder here" in line  # the library's own words
    assert not list(tmp_path.iterdir())
    assert "not 'cuda'" in tandem("demo", "--vendor", "cuda", status=2).stderr


@needs_rtx
def test_the_demo_s_plan_is_made_by_the_library_s_builder(tmp_path):
    env = {"TANDEM_TENSORRT_LIBRARY": RTX, "TANDEM_CUDA_LIBRARY": "/nowhere/libcuda.so.1"}
    for size in (4, 24):
        path = tmp_path / f"{size}.pte"
        tandem("_policy", "tensorrt", tmp_path, size, path, env=env)
        assert 0.8 * size * MIB < path.stat().st_size < 1.3 * size * MIB + 2 * MIB
        facts = tandem_json("inspect", path)["methods"][0]["delegates"][0]["facts"]
        assert facts["plan"] == "TensorRT-RTX 1.7.1" and facts["binding input 0"] == "image float32 [36, 768]"
        assert facts["binding output 2"] == "action float32 [16, 7]"
        line = tandem("run", path, status=1, env=env).stderr  # no GPU here: the library's own words
        assert "cudaError 35" in line or "no CUDA driver" in line
    line = tandem("_policy", "tensorrt", tmp_path, 4, tmp_path / "lean.pte", status=1,
                  env={**env, "TANDEM_TENSORRT_LIBRARY": LEAN11}).stderr
    assert "has no builder" in line


def test_the_builder_s_slots_are_those_of_the_list():
    """Every slot in cli/plan.c against tests/standin/slots.tsv: TensorRT 10 from the headers, 11 and RTX as seen."""
    source = (ROOT / "cli/plan.c").read_text()
    slots = {name: int(number) for name, number in re.findall(r"\bSLOT_(\w+) = (\d+)", source)}
    methods = {
        "CREATE_CONFIG": ("VBuilder", "createBuilderConfig", "create_builder_config"),
        "CREATE_NETWORK": ("VBuilder", "createNetworkV2", "create_network"),
        "BUILD": ("VBuilder", "buildSerializedNetwork", "build_serialized_network"),
        "ADD_INPUT": ("VNetworkDefinition", "addInput", "add_input"),
        "MARK_OUTPUT": ("VNetworkDefinition", "markOutput", "mark_output"),
        "ADD_ACTIVATION": ("VNetworkDefinition", "addActivation", "add_activation"),
        "ADD_ELEMENTWISE": ("VNetworkDefinition", "addElementWise", "add_elementwise"),
        "ADD_MATRIX_MULTIPLY": ("VNetworkDefinition", "addMatrixMultiply", "add_matrix_multiply"),
        "ADD_CONSTANT": ("VNetworkDefinition", "addConstant", "add_constant"),
        "TENSOR_SET_NAME": ("VTensor", "setName", "name (set)"),
        "LAYER_GET_OUTPUT": ("VLayer", "getOutput", "get_output"),
        "MEMORY_DATA": ("VHostMemory", "data", None),
        "MEMORY_SIZE": ("VHostMemory", "size", "nbytes (get)"),
    }
    rows = [line.split("\t") for line in (ROOT / "tests/standin/slots.tsv").read_text().splitlines()[1:]]
    assert {re.sub("_1[01]$", "", name) for name in slots} == set(methods)
    for name, number in slots.items():
        owner, method, seen = methods[re.sub("_1[01]$", "", name)]
        versions = {"10.0.0", "10.16.1"} if name.endswith("_10") else {"11.0", "11.1"}
        if not re.search("_1[01]$", name):
            versions |= {"10.0.0", "10.16.1"}
        for version in versions:
            assert {int(row[2]) for row in rows if row[:2] == [version, owner] and row[3] == method} == {number}, name
        if seen and not name.endswith("_10"):
            for version in ("11.4.0", "rtx-1.7.1"):
                assert number in {int(row[2]) for row in rows if row[:2] == [version, owner] and row[3] == seen}, name
