"""The delegate's own writer and reader, torch_tensorrt/executorch/serialization.py, as a peer of ours.

TANDEM_TENSORRT_PEER names that file (pure Python, taken out of the torch-tensorrt wheel by ./dev test). What it
writes, our parser reads back field by field; what our tests' writer writes, it reads; and what our parser
refuses for its arithmetic, it does not take for something else.
"""

import dataclasses
import importlib.util
import json
import os
import pathlib
import random
import struct
import subprocess

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
TOOL = pathlib.Path(os.environ.get("TANDEM_BUILD", ROOT / "build/release")) / "tests/tensorrt/payload_tool"
PEER = os.environ.get("TANDEM_TENSORRT_PEER")
LIMIT_S = 60

pytestmark = pytest.mark.skipif(not PEER, reason="TANDEM_TENSORRT_PEER is not set")


@pytest.fixture(scope="module")
def peer():
    spec = importlib.util.spec_from_file_location("peer_serialization", PEER)
    module = importlib.util.module_from_spec(spec)
    import sys

    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


def tool(*arguments):
    return subprocess.run([TOOL, *map(str, arguments)], capture_output=True, text=True, timeout=LIMIT_S)


def read(path, payload):
    """Our parser's fields of a payload."""
    path.write_bytes(payload)
    done = tool("read", path)
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(done.stdout)


def metadata_cases(peer):
    binding, metadata = peer.TensorRTIOBinding, peer.TensorRTBlobMetadata
    x = binding("x", "float32", [1, 3, 224, 224], True)
    cache = binding("cache", "float16", [-1, 8], True)
    y = binding("y", "float32", [], False)
    new_cache = binding("new_cache", "float16", [-1, 8], False)
    yield "empty", metadata()
    yield "plain", metadata([x, y])
    yield "unnamed_types", metadata([binding("a"), binding("b", is_input=False)])
    yield "aliased", metadata([x, cache, y, new_cache], {"new_cache": ("cache", "kv_cache_update")})
    yield "two_aliases", metadata(
        [cache, x, new_cache, y], {"new_cache": ("cache", "user"), "y": ("x", "kv_cache_update")}, True, 7
    )
    yield "everything", metadata([x, y], {}, True, 2**31 - 1, "gASV" * 1000, "linux_x86_64")
    yield "names", metadata([binding('quote" \\ slash / ä€😀 \t', "int64", [2**53], True), binding("\\u0000", "", [0], False)])
    yield "many", metadata([binding(f"t{i}", "int8", [i, -1], i % 3 > 0) for i in range(300)])


@pytest.mark.parametrize("engine_size", [1, 15, 16, 17, 70000])
def test_every_field_of_the_peer_is_read_back(peer, tmp_path, engine_size):
    engine = bytes(random.Random(engine_size).randbytes(engine_size))
    for name, metadata in metadata_cases(peer):
        payload = peer.serialize_engine(engine, metadata)
        ours = read(tmp_path / name, payload)
        assert ours["format"] == (2 if metadata.aliased_io else 1)
        assert payload[ours["engine_offset"] :][: ours["engine_size"]] == engine, name
        text = payload[ours["metadata_offset"] :][: ours["metadata_size"]]
        assert text == metadata.to_json(), name
        assert [dataclasses.asdict(binding) for binding in metadata.io_bindings] == ours["io_bindings"], name
        assert metadata.aliased_io == {a["output"]: (a["input"], a["kind"]) for a in ours["aliased_io"]}, name
        for field in ("hardware_compatible", "device_id", "serialized_metadata", "target_platform"):
            assert getattr(metadata, field) == ours[field], (name, field)


def test_the_peer_reads_what_our_writer_wrote(peer, tmp_path):
    names = tool("samples").stdout.split()
    assert names
    for name in names:
        path = tmp_path / name
        assert tool("sample", name, path).returncode == 0, name
        payload = path.read_bytes()
        engine, metadata = peer.deserialize_engine(payload)
        ours = read(tmp_path / "again", payload)
        assert len(engine) == ours["engine_size"] and payload.endswith(engine)
        assert [dataclasses.asdict(binding) for binding in metadata.io_bindings] == ours["io_bindings"]
        assert {a["output"]: (a["input"], a["kind"]) for a in ours["aliased_io"]} == metadata.aliased_io
        assert metadata.device_id == ours["device_id"] == 2
        # And once through the peer's writer: the same metadata.
        assert peer.deserialize_engine(peer.serialize_engine(engine, metadata)) == (engine, metadata)


def test_the_peer_takes_nothing_that_ours_refuses_for_its_offsets(peer, tmp_path):
    """Python's integers do not wrap, so both readers must agree on every header."""
    payload = bytearray(peer.serialize_engine(b"e" * 64, peer.TensorRTBlobMetadata()))
    draw = random.Random(5)
    taken = 0
    for round in range(300):
        edited = bytearray(payload)
        field, size = draw.choice([(4, 4), (8, 4), (12, 4), (16, 8)])
        old = int.from_bytes(payload[field : field + size], "little")
        value = draw.choice([0, 16, 31, 32, old - 16, old - 1, old + 1, old + 16, 2**31, 2**32 - 16, 2**64 - old])
        edited[field : field + size] = struct.pack("<Q", value % 2 ** (8 * size))[:size]
        path = tmp_path / "edited"
        path.write_bytes(edited)
        done = tool("read", path)
        try:
            engine, metadata = peer.deserialize_engine(bytes(edited))
        except (ValueError, TypeError, AttributeError) as reason:
            assert done.returncode == 1, (round, field, value, reason)
            continue
        # An engine of no bytes is the one thing that the peer takes and we do not.
        if engine:
            ours = json.loads(done.stdout)
            assert bytes(edited)[ours["engine_offset"] :][: ours["engine_size"]] == engine
            taken += 1
        else:
            assert done.returncode == 1 and "engine_size is 0" in done.stdout
    assert 0 < taken < 300
