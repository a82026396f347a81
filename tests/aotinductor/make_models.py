"""Compiles the models of the AOTInductor tests with the torch of this Python, once, and prints the folder they are in.

For each model NAME.payload, what tandem loads, and for some NAME.so and NAME.blob: the same model as torch itself links
it, for expected numbers that owe nothing to tandem. The folder lies in the cache, named by everything it depends on;
two that make it at once wait for each other. Also there: torch_library, with the path of torch's lib folder, and
programs NAME.pte where executorch is installed.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import pathlib
import shutil
import sys
import tempfile
import unittest.mock

ROOT = pathlib.Path(__file__).resolve().parents[2]
EXPORT = ROOT / "python/tandem/export.py"

try:
    import torch
except ImportError:
    sys.exit("no torch in this Python")
sys.path.insert(0, str(EXPORT.parent))
import export  # noqa: E402 - as a module of its own: it needs nothing of tandem

OPTIONS = {"aot_inductor.compile_wrapper_opt_level": "O0"}  # a third of the time; kernels are optimised all the same


class Mlp(torch.nn.Module):
    """(rows, 8) -> (rows, 4)."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.first, self.second = torch.nn.Linear(8, 16), torch.nn.Linear(16, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(torch.nn.functional.gelu(self.first(x)))


class Sum(torch.nn.Module):
    """(1, 16) -> (1, 16): 3 x the sum of all inputs, and a buffer that no run writes to."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("total", torch.zeros(1, 16))
        self.register_buffer("ones", torch.ones(1, 16))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.total.add_(x)
        return self.total * 3 * self.ones


class Cache(torch.nn.Module):
    """A key-value cache as a decoder has one: writes row `at`, attends over the rows so far."""

    def __init__(self, width: int = 16, length: int = 32) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.qkv = torch.nn.Linear(width, 3 * width)
        self.register_buffer("keys", torch.zeros(length, width))
        self.register_buffer("values", torch.zeros(length, width))
        self.register_buffer("places", torch.arange(length))

    def forward(self, x: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
        q, k, v = self.qkv(x).chunk(3, dim=-1)
        self.keys.index_copy_(0, at, k)
        self.values.index_copy_(0, at, v)
        scores = (q @ self.keys.t()).masked_fill(self.places > at, float("-inf"))
        return torch.softmax(scores, dim=-1) @ self.values


class Large(torch.nn.Module):
    """64 MiB of weights, for measured memory."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(4)
        self.layers = torch.nn.ModuleList(torch.nn.Linear(2048, 2048) for _ in range(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = torch.relu(layer(x))
        return x


class Tables(torch.nn.Module):
    """Several dtypes, an input that is not used, an empty dimension, an output that is an input."""

    def forward(self, a: torch.Tensor, b: torch.Tensor, c: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return a.t(), b + 1, a


class Turned(torch.nn.Module):
    """(2, 3) -> (3, 2), its memory in the order of the input's."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.t() * 2


def models() -> dict[str, tuple[torch.nn.Module, tuple[torch.Tensor, ...], object, bool]]:
    """Module, example inputs, dynamic shapes, whether a library of torch's own linking is wanted."""
    rows = torch.export.Dim("rows", min=1, max=8)
    return {
        "plain": (Mlp(1), (torch.randn(2, 8),), None, True),
        "dynamic": (Mlp(2), (torch.randn(4, 8),), ({0: rows},), True),
        "stateful": (Sum(), (torch.randn(1, 16),), None, True),
        "cache": (Cache(), (torch.randn(1, 16), torch.tensor([1])), None, False),
        "large": (Large(), (torch.randn(1, 2048),), None, False),
        "tables": (
            Tables(),
            (torch.randn(2, 3), torch.zeros(4, dtype=torch.int64), torch.zeros(2, dtype=torch.bfloat16)),
            None,
            False,
        ),
    }


def write_reference(folder: pathlib.Path, name: str, model: torch.nn.Module, args: tuple, shapes: object) -> None:
    exported = torch.export.export(model, args, dynamic_shapes=shapes, strict=False)
    options = OPTIONS | {
        "aot_inductor.package": True,
        "aot_inductor.package_constants_in_so": False,
        "aot_inductor.package_constants_on_disk_format": "binary_blob",
    }
    names = exported.graph_signature.user_inputs
    values = tuple(node.meta["val"] for node in exported.graph.nodes if node.name in names)
    with torch.no_grad():
        files = torch._inductor.aot_compile(exported.module(check_guards=False), values, options=options)
    for file in files:
        if str(file).endswith((".so", ".blob")):
            shutil.copy(file, folder / (name + pathlib.Path(file).suffix))


def fill(folder: pathlib.Path) -> None:
    (folder / "torch_library").write_text(str(pathlib.Path(torch.__file__).parent / "lib"))
    for name, (model, args, shapes, referenced) in models().items():
        model.eval()
        exported = export._export(model, args, None, shapes)
        payload = export._compile(exported, True, OPTIONS)
        (folder / f"{name}.payload").write_bytes(payload)
        with contextlib.suppress(ImportError), open(folder / f"{name}.pte", "wb") as file:
            export._build_program(exported, payload, "forward").write_to_file(file)
        if referenced:
            write_reference(folder, name, model, args, shapes)


def write_turned(folder: pathlib.Path) -> None:
    """turned.payload: as other exporters leave an output, where tandem's makes it contiguous."""
    exported = export._export(Turned().eval(), (torch.randn(2, 3),), None, None)
    as_it_is = unittest.mock.patch.object(export, "_contiguous_module", lambda whole: whole.module(check_guards=False))
    with as_it_is:
        (folder / "turned.payload").write_bytes(export._compile(exported, True, OPTIONS))


def main() -> None:
    cache = pathlib.Path(os.environ.get("XDG_CACHE_HOME", pathlib.Path.home() / ".cache")) / "tandem"
    content = pathlib.Path(__file__).read_bytes() + EXPORT.read_bytes() + export._features().encode()
    folder = cache / f"aotinductor-{torch.__version__}-{hashlib.sha256(content).hexdigest()[:12]}"
    cache.mkdir(parents=True, exist_ok=True)
    with open(f"{folder}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.exists():
            scratch = pathlib.Path(tempfile.mkdtemp(dir=cache))
            try:
                fill(scratch)
                write_turned(scratch)
                scratch.rename(folder)
            finally:
                shutil.rmtree(scratch, ignore_errors=True)
    print(folder)


if __name__ == "__main__":
    main()
