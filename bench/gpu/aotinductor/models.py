"""The programs that run.sh measures, compiled on the machine that has the GPU.

    models.py FOLDER transformer|policy|policy_timed|policy_torch|partitioner|conformance|eager [small] [cpu]

transformer   770 MiB of float16 weights, tandem's own payload      -> transformer.pte, engine.so, engine.blob
policy        a policy of SmolVLA's shape (bench/gpu/policy_model.py), the first candidate of each product -> policy.pte
policy_timed  the same with the best of four candidates             -> policy_timed.pte
policy_torch  the policy with PyTorch's own kernels, so that it needs libtorch -> policy_torch.pte
partitioner   the transformer through ExecuTorch's own CudaPartitioner -> partitioner.pte, .aoti_cuda_blob.ptd
conformance   the models of the conformance suite                     -> plain, dynamic, stateful.payload
eager         what PyTorch itself needs: modules that share parameters -> one JSON document on stdout
"""

from __future__ import annotations

import json
import pathlib
import struct
import sys
import time
from typing import Any

import torch

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent), str(HERE.parents[2] / "python" / "tandem")]


class Block(torch.nn.Module):
    """One layer of a decoder; attention is written out, since the shims have no kernel for the fused one."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.before, self.between = torch.nn.LayerNorm(width), torch.nn.LayerNorm(width)
        self.project, self.mix = torch.nn.Linear(width, 3 * width), torch.nn.Linear(width, width)
        self.up, self.down = torch.nn.Linear(width, 4 * width), torch.nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        depth = width // self.heads
        parts = self.project(self.before(x)).view(batch, length, 3, self.heads, depth)
        q, k, v = parts.permute(2, 0, 3, 1, 4).unbind(0)
        weights = torch.softmax((q @ k.transpose(-1, -2)) * depth**-0.5, -1)
        x = x + self.mix((weights @ v).transpose(1, 2).reshape(batch, length, width))
        return x + self.down(torch.nn.functional.gelu(self.up(self.between(x))))


class Transformer(torch.nn.Module):
    """x [1, 128, width] -> the same; 8 layers of width 2048 have 770 MiB in float16."""

    def __init__(self, width: int, layers: int, heads: int) -> None:
        super().__init__()
        self.layers = torch.nn.ModuleList([Block(width, heads) for _ in range(layers)])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x)
        return x


def make_transformer(device: str, small: bool) -> tuple[torch.nn.Module, tuple[torch.Tensor, ...]]:
    torch.manual_seed(0)
    width, layers, heads = (256, 2, 4) if small else (2048, 8, 16)
    model = Transformer(width, layers, heads).eval().to(device)
    x = torch.randn(1, 128, width, device=device)
    return (model.half(), (x.half(),)) if device != "cpu" else (model, (x,))


# What ExecuTorch's CudaBackend compiles with: generated kernels only, so that its shims can run the engine.
SHIMS_ONLY = {
    "max_autotune": True,
    "max_autotune_gemm_backends": "TRITON",
    "emulate_precision_casts": True,
    "loop_ordering_after_fusion": False,
    "use_joint_graph_passes": False,
    "aot_inductor.embed_kernel_binary": True,
}

# For the policy, whose thousand products of matrices would each be timed with every operation that may follow: fusion
# by rule, and few candidates a shape. A kernel may be slower than the best one; sharing does not depend on it.
FEW_CHOICES = {"benchmark_epilogue_fusion": False, "prologue_fusion": False}


def leave_runs_unoptimized() -> None:
    """Has AOTInductor's host code compiled with -O1, its default, but for the function that launches the kernels.

    The policy's is one function of two megabytes, over which g++ spent 116 s of processor time with -O1 and 16 s like
    this. All of it with -O0, 10 s, makes a load six times as slow: the container's code is in there too.
    """
    from torch._inductor import codecache

    run, compile_all = "void AOTInductorModel::run_impl(", codecache.AotCodeCompiler.compile.__func__

    def compile_most(cls: type, graph: Any, code: str, *rest: Any, **named: Any) -> Any:
        code = code.replace(f"\n{run}", f'\n__attribute__((optimize("O0"))) {run}')
        return compile_all(cls, graph, code, *rest, **named)

    codecache.AotCodeCompiler.compile = classmethod(compile_most)


def weigh(model: torch.nn.Module) -> int:
    return sum(t.numel() * t.element_size() for t in [*model.parameters(), *model.buffers()])


def write_program(
    folder: pathlib.Path,
    name: str,
    model: torch.nn.Module,
    args: tuple[torch.Tensor, ...],
    options: dict[str, Any] | None,
) -> None:
    """The options count where the device is a GPU; with those of SHIMS_ONLY the program runs without torch."""
    import export  # python/tandem/export.py alone: the package needs its native module

    if args[0].device.type == "cpu":
        options = None
    began = time.time()
    with torch.no_grad():
        needed = "max_autotune" not in (options or {})
        export.to_program(model, args, folder / f"{name}.pte", torch_needed=needed, options=options)
    print(f"{name}: {weigh(model) / 2**20:.1f} MiB of weights, {time.time() - began:.0f} s to compile", flush=True)


def split_payload(folder: pathlib.Path, name: str) -> None:
    """The library and the weights of the program's payload, for the peers that have no tandem."""
    data = (folder / f"{name}.pte").read_bytes()
    at = data.find(b"TDAOTI01")
    _, _, _, so, so_size, weights, weights_size = struct.unpack_from("<8sIIQQQQ", data, at)
    (folder / "engine.so").write_bytes(data[at + so : at + so + so_size])
    (folder / "engine.blob").write_bytes(data[at + weights : at + weights + weights_size])


def partition(folder: pathlib.Path, small: bool) -> None:
    from executorch.backends.cuda.cuda_backend import CudaBackend
    from executorch.backends.cuda.cuda_partitioner import CudaPartitioner
    from executorch.exir import EdgeCompileConfig, to_edge_transform_and_lower

    model, args = make_transformer("cpu", small)
    model, args = model.half(), tuple(arg.half() for arg in args)
    began = time.time()
    partitioner = CudaPartitioner([CudaBackend.generate_method_name_compile_spec("forward")])
    program = to_edge_transform_and_lower(
        torch.export.export(model, args, strict=False),
        partitioner=[partitioner],
        compile_config=EdgeCompileConfig(_check_ir_validity=False),
    ).to_executorch()
    with open(folder / "partitioner.pte", "wb") as file:
        program.write_to_file(file)
    program.write_tensor_data_to_file(str(folder))
    (folder / "aoti_cuda_blob.ptd").rename(folder / "partitioner.aoti_cuda_blob.ptd")
    print(f"partitioner: {weigh(model) / 2**20:.1f} MiB of weights, {time.time() - began:.0f} s to compile", flush=True)


def write_conformance(folder: pathlib.Path) -> None:
    sys.path.insert(0, str(HERE.parents[2] / "tests" / "aotinductor"))
    import export
    import make_models

    began = time.time()
    for name in ("plain", "dynamic", "stateful"):
        model, args, shapes, _ = make_models.models()[name]
        on_device = tuple(arg.cuda() for arg in args)
        data = export.to_payload(
            model.eval().cuda(), on_device, dynamic_shapes=shapes, torch_needed=False, options=SHIMS_ONLY
        )
        (folder / f"{name}.payload").write_bytes(data)
    print(f"conformance: {time.time() - began:.0f} s to compile", flush=True)


def run_eager(small: bool) -> None:
    """N modules whose parameters are the first one's, each on a stream of its own."""
    import copy

    model, args = make_transformer("cuda", small)
    shared = {id(p): p for p in [*model.parameters(), *model.buffers()]}
    modules, costs, outputs = [], [], []
    with torch.no_grad():
        for _ in range(4):
            before = torch.cuda.mem_get_info()[0]
            module = model if not modules else copy.deepcopy(model, memo=dict(shared))
            modules.append(module)
            stream = torch.cuda.Stream()
            with torch.cuda.stream(stream):
                outputs.append(module(*args))
            torch.cuda.synchronize()
            costs.append(before - torch.cuda.mem_get_info()[0])
        times = []
        for _ in range(50):
            began = time.perf_counter()
            modules[0](*args)
            torch.cuda.synchronize()
            times.append(time.perf_counter() - began)
    print(json.dumps({"measurement": "peers", "kind": "eager modules that share parameters", "load_bytes": costs,
                      "outputs_equal": all(torch.equal(outputs[0], o) for o in outputs),
                      "ms_a_run_of_all": {"1": sorted(times)[25] * 1e3}, "good": True}))  # fmt: skip


def main() -> None:
    folder, what = pathlib.Path(sys.argv[1]), sys.argv[2]
    small, device = "small" in sys.argv[3:], "cpu" if "cpu" in sys.argv[3:] else "cuda"
    if what == "transformer":
        write_program(folder, "transformer", *make_transformer(device, small), SHIMS_ONLY)
        split_payload(folder, "transformer")
    elif what in ("policy", "policy_timed", "policy_torch"):
        import policy_model

        model, args = policy_model.make(device, shape=policy_model.SMALL if small else policy_model.Shape())
        if what == "policy_torch":
            options = FEW_CHOICES
        else:
            options = {**SHIMS_ONLY, **FEW_CHOICES, "test_configs.max_mm_configs": 1 if what == "policy" else 4}
        leave_runs_unoptimized()
        write_program(folder, what, model, args, options)
    elif what == "partitioner":
        partition(folder, small)
    elif what == "conformance":
        write_conformance(folder)
    elif what == "eager":
        run_eager(small)
    else:
        raise SystemExit(f"{what}: no such program; models.py's first lines name them")


if __name__ == "__main__":
    main()
