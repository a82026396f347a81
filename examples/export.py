"""From a PyTorch module to a program (.pte) for one backend, through that backend's own exporter.

    python export.py small.pte                                   a small policy for OpenVINO
    python export.py small.pte --backend xnnpack
    python export.py mine.pte --model my_package.policies:build   a model of yours

`--model` names a function without arguments that returns a module and a tuple of example inputs. Export on the machine
that loads the program, or on one like it: payloads suit the version and the hardware that made them. `aotinductor` is
tandem's own exporter and needs a C++ compiler; `tensorrt` and `cuda` (ExecuTorch's CudaBackend) need an NVIDIA GPU.

Exit status: 0 done, 1 the export failed or a package is missing (one line says which), 2 called wrongly.
"""

from __future__ import annotations

import argparse
import importlib.util
import pathlib
import sys
import types
import typing
import warnings

if typing.TYPE_CHECKING:
    import torch

    Model = tuple[torch.nn.Module, tuple[torch.Tensor, ...]]


class Problem(Exception):
    """What is missing or wrong, as one line."""


def small_policy() -> Model:
    """An image float32[1, 3, 96, 96] and a state float32[1, 8] become 16 actions float32[1, 16, 8]; seeded weights."""
    import torch

    class Policy(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.eyes = torch.nn.Sequential(
                torch.nn.Conv2d(3, 32, 8, stride=8), torch.nn.ReLU(),
                torch.nn.Conv2d(32, 64, 4, stride=4), torch.nn.ReLU(), torch.nn.Flatten(),
            )  # fmt: skip
            self.head = torch.nn.Sequential(
                torch.nn.Linear(64 * 9 + 8, 1024), torch.nn.GELU(), torch.nn.Linear(1024, 16 * 8), torch.nn.Tanh()
            )

        def forward(self, image: torch.Tensor, state: torch.Tensor) -> torch.Tensor:
            return self.head(torch.cat([self.eyes(image), state], dim=1)).reshape(1, 16, 8)

    torch.manual_seed(0)
    return Policy().eval(), (torch.rand(1, 3, 96, 96), torch.rand(1, 8))


def find_model(name: str) -> Model:
    """What the function MODULE:FUNCTION returns; modules are looked for in the working directory too."""
    module, _, function = name.partition(":")
    sys.path.insert(0, "")
    try:
        build = getattr(importlib.import_module(module), function)
    except (ImportError, AttributeError) as error:
        raise Problem(f"--model {name}: {error}") from error
    built = build()
    if not (isinstance(built, tuple) and len(built) == 2):
        raise Problem(f"--model {name}: it returned a {type(built).__name__}, expected a module and a tuple of inputs")
    return built[0], tuple(built[1])


def partitioners(backend: str) -> list[typing.Any]:
    """The partitioners that hand a model's operators to the backend; what nobody takes runs on ExecuTorch's kernels."""
    from executorch.exir.backend.compile_spec_schema import CompileSpec

    if backend == "openvino":
        # The package's own __init__ imports a quantizer with dependencies that no wheel declares; its partitioner needs
        # none of them.
        package = types.ModuleType("executorch.backends.openvino")
        executorch = importlib.import_module("executorch")
        package.__path__ = [f"{folder}/backends/openvino" for folder in executorch.__path__]
        sys.modules[package.__name__] = package
        from executorch.backends.openvino.partitioner import OpenvinoPartitioner

        return [OpenvinoPartitioner([CompileSpec("device", b"CPU")])]
    if backend == "xnnpack":
        from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner

        return [XnnpackPartitioner()]
    from executorch.backends.cuda.cuda_backend import CudaBackend
    from executorch.backends.cuda.cuda_partitioner import CudaPartitioner

    return [CudaPartitioner([CudaBackend.generate_method_name_compile_spec("forward")])]


def check(backend: str) -> None:
    """Raises for what can be known before a model is built: a missing exporter, a missing GPU."""
    if backend == "tensorrt":
        if importlib.util.find_spec("torch_tensorrt") is None:
            raise Problem("the package torch_tensorrt is not installed: pip install torch-tensorrt")
    if backend in ("tensorrt", "cuda"):
        import torch

        if not torch.cuda.is_available():
            raise Problem(f"exporting for {backend} needs an NVIDIA GPU, and torch {torch.__version__} sees none")


def export(backend: str, model: torch.nn.Module, inputs: tuple[torch.Tensor, ...], output: pathlib.Path) -> None:
    """Writes `output`, and for CUDA the weights as .ptd beside it."""
    import torch
    from executorch.exir import EdgeCompileConfig, to_edge_transform_and_lower

    exported = torch.export.export(model, inputs)
    if backend == "aotinductor":
        from tandem.export import ExportError, to_program

        try:
            return to_program(exported, path=output)
        except ExportError as error:
            raise Problem(str(error)) from error
    part = output.with_suffix(".part.pte")
    if backend == "tensorrt":
        import torch_tensorrt

        compiled = torch_tensorrt.dynamo.compile(exported, inputs)
        torch_tensorrt.save(compiled, str(part), output_format="executorch", arg_inputs=list(inputs))
    else:
        program = to_edge_transform_and_lower(
            exported,
            partitioner=partitioners(backend),
            compile_config=EdgeCompileConfig(_check_ir_validity=backend != "cuda"),
        ).to_executorch()
        with open(part, "wb") as file:
            program.write_to_file(file)
        if backend == "cuda":
            program.write_tensor_data_to_file(str(output.parent))
    part.replace(output)  # a program that some process has loaded must never be written into


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument("output", metavar="PROGRAM.pte", type=pathlib.Path)
    parser.add_argument(
        "--backend", choices=["openvino", "xnnpack", "aotinductor", "tensorrt", "cuda"], default="openvino"
    )
    parser.add_argument("--model", metavar="MODULE:FUNCTION", help="a model of yours, instead of a small policy")
    arguments = parser.parse_args()
    if arguments.model and not all(arguments.model.partition(":")):
        parser.error(f"--model: expected MODULE:FUNCTION, found {arguments.model!r}")
    warnings.simplefilter("ignore", FutureWarning)  # torch's own, about torch
    try:
        check(arguments.backend)
        model, inputs = find_model(arguments.model) if arguments.model else small_policy()
        export(arguments.backend, model, inputs, arguments.output)
    except ModuleNotFoundError as error:
        problem = f"the package {error.name} is not installed"
    except (Problem, OSError) as error:
        problem = str(error)
    else:
        print(f"{arguments.output}: {arguments.output.stat().st_size} bytes for {arguments.backend}")
        return 0
    print(f"export.py: {problem}", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
