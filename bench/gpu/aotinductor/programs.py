"""Runs programs of ExecuTorch's CudaBackend with their expected outputs: programs.py FOLDER WORK door|stock

FOLDER has NAME.pte, NAME.aoti_cuda_blob.ptd, NAME.inN.npy and NAME.out0.npy (bfloat16 stored as float32).
door    through the C door ($AOTI_BENCH): two loads that share, the second one a step behind
stock   through ExecuTorch's own Python runtime, tandem's plug-in loaded first; beside them a program that no GPU and no
        tandem is needed for: when even that one fails, the runtime does not work with the torch that is there, and the
        failures of the others say no more than that
One JSON document on stdout; its status is 1 when an output is wrong.
"""

from __future__ import annotations

import ctypes
import json
import os
import pathlib
import subprocess
import sys
from typing import Any

import numpy as np
import torch

TOLERANCE = {"cuda_mlp_bf16": 0.02}
CONTROL = pathlib.Path(__file__).parents[3] / "tests/data/pte/xnnpack_mlp.pte"


def inputs_of(folder: pathlib.Path, name: str) -> list[torch.Tensor]:
    tensors = [torch.from_numpy(np.load(path)) for path in sorted(folder.glob(f"{name}.in*.npy"))]
    return [t.bfloat16() if "bf16" in name and t.dtype == torch.float32 else t for t in tensors]


def distance(name: str, found: torch.Tensor, expected: torch.Tensor) -> tuple[float, bool]:
    far = float((found.float().reshape(expected.shape) - expected).abs().max())
    return far, far <= TOLERANCE.get(name, 1e-4)


def raw(tensor: torch.Tensor) -> bytes:
    return tensor.contiguous().view(torch.uint8).numpy().tobytes()


def last_line(text: str) -> str:
    return (text.strip().splitlines() or ["(nothing said)"])[-1][-600:]


def first_line(problem: Exception) -> str:
    return f"{type(problem).__name__}: {problem}".splitlines()[0][:600]


def through_door(folder: pathlib.Path, work: pathlib.Path, name: str) -> dict[str, Any]:
    """Steps of both loads must agree bit for bit; the first one with eager PyTorch's output."""
    inputs, expected = inputs_of(folder, name), torch.from_numpy(np.load(folder / f"{name}.out0.npy"))
    paths = [work / f"{name}.in{i}.bin" for i in range(len(inputs))]
    for path, tensor in zip(paths, inputs, strict=True):
        path.write_bytes(raw(tensor))
    out = work / name
    out.mkdir(exist_ok=True)
    command = [os.environ["AOTI_BENCH"], "run", str(folder / f"{name}.pte"), str(folder / f"{name}.aoti_cuda_blob.ptd"),
               "inputs=" + ",".join(map(str, paths)), f"out={out}", "steps=3"]  # fmt: skip
    if "cache" in name:  # the place in the cache moves on: steps differ, and only if each load has its own state agree
        command.append("step_input=1")
        paths[1].write_bytes(raw(torch.zeros_like(inputs[1])))
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    if done.returncode:
        return {"good": False, "error": last_line(done.stderr)}
    result: dict[str, Any] = json.loads(done.stdout)
    steps = [[(out / f"load{k}.step{s}.bin").read_bytes() for s in range(3)] for k in range(2)]
    result["loads_agree"] = steps[0] == steps[1]
    result["steps_differ"] = len(set(steps[0]))
    found = torch.frombuffer(bytearray(steps[0][0]), dtype=inputs[0].dtype)
    result["distance"], close = distance(name, found, expected)
    good = close and result["loads_agree"] and result["steps_differ"] == (3 if "cache" in name else 1)
    result["good"] = bool(good and result["good"])
    return result


def with_other_values(folder: pathlib.Path, work: pathlib.Path, name: str) -> dict[str, Any]:
    """A copy of the data file with equal keys and other weights must give another engine."""
    data = bytearray((folder / f"{name}.aoti_cuda_blob.ptd").read_bytes())
    data[-64:-32] = bytes(32)
    changed = work / f"{name}.changed.ptd"
    changed.write_bytes(data)
    command = [os.environ["AOTI_BENCH"], "values", str(folder / f"{name}.pte"),
               str(folder / f"{name}.aoti_cuda_blob.ptd"), str(changed)]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    return json.loads(done.stdout) if done.returncode == 0 else {"good": False, "error": last_line(done.stderr)}


def through_stock(folder: pathlib.Path, work: pathlib.Path, name: str) -> dict[str, Any]:
    from executorch.runtime import Runtime

    expected = torch.from_numpy(np.load(folder / f"{name}.out0.npy"))
    try:
        loads = [
            Runtime.get()
            .load_program(folder / f"{name}.pte", data_path=folder / f"{name}.aoti_cuda_blob.ptd")
            .load_method("forward")
            for _ in range(2)
        ]
        found = [load.execute(inputs_of(folder, name))[0].clone() for load in loads]
    except Exception as problem:  # what the stock runtime cannot do is the result
        return {"good": False, "error": first_line(problem)}
    far, close = distance(name, found[0], expected)
    return {"good": close and torch.equal(*found), "distance": far, "loads_agree": torch.equal(*found)}


def control() -> dict[str, Any]:
    from executorch.runtime import Runtime

    try:
        method = Runtime.get().load_program(CONTROL).load_method("forward")
        found = method.execute([torch.from_numpy(np.load(f"{CONTROL.with_suffix('')}.forward.0.in0.npy"))])[0]
    except Exception as problem:
        return {"good": False, "error": first_line(problem)}
    expected = torch.from_numpy(np.load(f"{CONTROL.with_suffix('')}.forward.0.out0.npy"))
    return {"good": torch.allclose(found, expected, atol=1e-4)}


def main() -> None:
    folder, work, how = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2]), sys.argv[3]
    if how == "stock":
        ctypes.CDLL(os.environ["TANDEM_EXECUTORCH_LIBRARY"])
    run = through_door if how == "door" else through_stock
    results = {path.stem: run(folder, work, path.stem) for path in sorted(folder.glob("*.pte"))}
    if how == "door" and "cuda_linear" in results:
        results["cuda_linear, other values"] = with_other_values(folder, work, "cuda_linear")
    good = bool(results) and all(result["good"] for result in results.values())
    if how == "stock":
        results["control (XNNPACK, no GPU)"] = control()
        good = good or not results["control (XNNPACK, no GPU)"]["good"]
    print(json.dumps({"measurement": "programs", "how": how, "programs": results, "good": good}))
    sys.exit(0 if good else 1)


if __name__ == "__main__":
    main()
