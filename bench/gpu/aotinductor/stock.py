"""Loads of one program in ExecuTorch's own Python runtime, tandem's plug-in loaded first: stock.py FILE.pte [FILE.ptd]

Device memory of each of eight loads and of its first run, and seconds of the load, sharing and with an engine each,
every mode in a process of its own. Device memory is what the driver counts for the whole GPU. One JSON document on
stdout; its status is 1 when outputs differ in a bit, or when the second shared load takes over 4 MiB beyond its inputs
and outputs.
"""

from __future__ import annotations

import ctypes
import hashlib
import json
import os
import pathlib
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import torch

LOADS = 8
# By ExecuTorch's numbers.
DTYPES = {3: torch.int32, 4: torch.int64, 5: torch.float16, 6: torch.float32, 11: torch.bool, 15: torch.bfloat16}
ROOM = 4 << 20


def used_bytes() -> int:
    torch.cuda.synchronize()
    free, total = torch.cuda.mem_get_info()
    return total - free


def measured(call: Callable[[], Any]) -> tuple[Any, int, float]:
    """What a call gives, the device memory that it took, and its seconds."""
    before, began = used_bytes(), time.perf_counter()
    result = call()
    seconds = time.perf_counter() - began
    return result, used_bytes() - before, seconds


def digest(tensor: torch.Tensor) -> str:
    return hashlib.sha256(tensor.cpu().reshape(-1).view(torch.uint8).numpy()).hexdigest()


def make_inputs(metadata: Any) -> list[torch.Tensor]:
    torch.manual_seed(0)
    tensors = []
    for i in range(metadata.num_inputs()):
        info = metadata.input_tensor_meta(i)
        dtype = DTYPES[info.dtype()]
        shape = info.sizes()
        tensors.append(torch.randn(shape).to(dtype) if dtype.is_floating_point else torch.zeros(shape, dtype=dtype))
    return tensors


def load_all(program: pathlib.Path, data: pathlib.Path | None) -> dict[str, Any]:
    ctypes.CDLL(os.environ["TANDEM_EXECUTORCH_LIBRARY"])
    from executorch.runtime import Runtime

    def load() -> Any:
        return Runtime.get().load_program(program, data_path=data).load_method("forward")

    kept: list[Any] = []
    outputs: list[list[str]] = []
    document: dict[str, Any] = {"load_bytes": [], "run_bytes": [], "load_seconds": []}
    used_bytes()  # torch's own part of the GPU
    for _ in range(LOADS):
        method, load_bytes, seconds = measured(load)
        inputs = make_inputs(method.metadata)
        found, run_bytes, _ = measured(lambda method=method, inputs=inputs: method.execute(inputs))
        kept.append(method)
        outputs.append([digest(tensor) for tensor in found])
        for key, value in (("load_bytes", load_bytes), ("run_bytes", run_bytes), ("load_seconds", seconds)):
            document[key].append(value)
    document["io_bytes"] = sum(tensor.nbytes for tensor in [*inputs, *found])
    document["outputs_equal"] = all(other == outputs[0] for other in outputs)
    document["outputs"] = outputs[0]
    return document


def in_a_process(shared: bool) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, __file__, "--mode", *sys.argv[1:]],
        env={**os.environ, "TANDEM_OPT_USE_SHARED_ENGINES": str(shared).lower()},
        capture_output=True,
        text=True,
        timeout=100,
    )
    if done.returncode:
        sys.exit("stock.py: " + " ".join(done.stderr.splitlines()[-3:]))
    return {"shared": shared, **json.loads(done.stdout.splitlines()[-1])}


def main() -> None:
    if sys.argv[1] == "--mode":
        program, *data = (pathlib.Path(path) for path in sys.argv[2:])
        print(json.dumps(load_all(program, data[0] if data else None)))
        return
    modes = [in_a_process(shared) for shared in (True, False)]
    second = modes[0]["load_bytes"][1] + modes[0]["run_bytes"][1] - modes[0]["io_bytes"]
    good = second <= ROOM and all(mode["outputs_equal"] for mode in modes)
    good = good and modes[0]["outputs"] == modes[1]["outputs"]
    print(json.dumps({"measurement": "stock", "torch": torch.__version__, "modes": modes,
                      "second_shared_load_bytes": second, "good": good}))  # fmt: skip
    sys.exit(0 if good else 1)


if __name__ == "__main__":
    main()
