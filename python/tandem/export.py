"""From a PyTorch module to a program that AOTInductor compiled, whose loads share their weights.

    from tandem import export
    export.to_program(policy, (image, state), "policy.pte")

writes a .pte with one delegate of the backend `TandemAotiBackend`: the whole model, compiled for the device that its
weights are on ("cpu" or "cuda"), the weights beside the code. Every load of it in a process shares one set of weights;
buffers that the model writes to (a KV cache) belong to each load and are cleared by its reset.

Compile on the machine that runs the program, or on one like it: the code is made for its processor or GPU and for its
version of torch or a newer one. A C++ compiler is needed for "cpu", Triton for "cuda". Needs torch, and `to_program`
needs executorch; this module needs nothing else of tandem.

Thread rule: one export at a time in a process, since torch's compiler keeps its options in the process.
"""

from __future__ import annotations

import hashlib
import json
import os
import pathlib
import platform
import re
import struct
import tempfile
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind, OutputKind
from torch.utils import _pytree

__all__ = ["ExportError", "to_payload", "to_program"]

_MAGIC = b"TDAOTI01"
_HEADER = struct.Struct("<8sIIQQQQ16x")  # magic; offset and size of metadata, library, weights
_ALIGNMENT = 256  # bytes, of the weights in the payload and of the payload in the file
_DTYPES = {
    torch.uint8: "uint8", torch.int8: "int8", torch.int16: "int16", torch.int32: "int32", torch.int64: "int64",
    torch.float16: "float16", torch.float32: "float32", torch.float64: "float64", torch.bool: "bool",
    torch.bfloat16: "bfloat16", torch.float8_e5m2: "float8_e5m2", torch.float8_e4m3fn: "float8_e4m3fn",
    torch.uint16: "uint16", torch.uint32: "uint32", torch.uint64: "uint64",
}  # fmt: skip

# Instruction sets that a compiler told to use this processor's own may use; the rest of the list is not for programs.
_FEATURES = re.compile(
    r"(avx|amx|sse|ssse|pni|fma|f16c|bmi|movbe|popcnt|adx|aes|vaes|vpclmul|pclmul|gfni|abm|sha_|xop|sve|asimd|fp16|bf16|i8mm)"
)


class ExportError(RuntimeError):
    """The model cannot become such a program; the message says what to change."""


def to_payload(
    model: torch.nn.Module | ExportedProgram,
    args: Sequence[Any] = (),
    *,
    kwargs: Mapping[str, Any] | None = None,
    dynamic_shapes: Any = None,
    torch_needed: bool = True,
    options: Mapping[str, Any] | None = None,
) -> bytes:
    """Compile a model and give the payload of a `TandemAotiBackend` delegate.

    `model`: a module in evaluation mode, with `args`, `kwargs` and `dynamic_shapes` as torch.export.export takes them;
    or what that made, then its own example inputs count. Inputs and outputs are tensors. `torch_needed`: False keeps
    to generated code, so that on CUDA ExecuTorch's libaoti_cuda_shims.so can run it without torch. `options`: more of
    AOTInductor's compile options ("max_autotune": True). The result is owned by the caller; nothing stays on disk but
    torch's own compile cache. Raises ExportError for a model that does not fit, and what torch raises.
    """
    return _compile(_export(model, args, kwargs, dynamic_shapes), torch_needed, options)


def to_program(
    model: torch.nn.Module | ExportedProgram,
    args: Sequence[Any] = (),
    path: str | os.PathLike[str] = "model.pte",
    *,
    method: str = "forward",
    kwargs: Mapping[str, Any] | None = None,
    dynamic_shapes: Any = None,
    torch_needed: bool = True,
    options: Mapping[str, Any] | None = None,
) -> None:
    """As to_payload, written to `path` as an ExecuTorch program (.pte) of one method.

    A dimension that is dynamic needs a greatest size (torch.export.Dim("batch", max=16)): ExecuTorch plans memory for
    it. The file appears under its name when it is whole.
    """
    exported = _export(model, args, kwargs, dynamic_shapes)
    data = _build_program(exported, _compile(exported, torch_needed, options), method)
    target = pathlib.Path(path)
    handle, scratch = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            data.write_to_file(file)
        os.chmod(scratch, 0o644)
        os.replace(scratch, target)
    except BaseException:
        os.unlink(scratch)
        raise


def _export(
    model: torch.nn.Module | ExportedProgram, args: Sequence[Any], kwargs: Mapping[str, Any] | None, dynamic_shapes: Any
) -> ExportedProgram:
    if isinstance(model, ExportedProgram):
        if args or kwargs or dynamic_shapes is not None:
            raise ExportError("an exported program has its own example inputs and shapes: give it alone")
        exported = model
    else:
        if model.training:
            raise ExportError("the model is in training mode: call model.eval() first")
        with torch.no_grad():
            exported = torch.export.export(
                model, tuple(args), dict(kwargs or {}), dynamic_shapes=dynamic_shapes, strict=False
            )
    for spec in exported.graph_signature.input_specs:
        if spec.kind not in (InputKind.USER_INPUT, InputKind.PARAMETER, InputKind.BUFFER, InputKind.CONSTANT_TENSOR):
            raise ExportError(f"the model has an input or constant of the kind {spec.kind.name}, expected tensors")
    return exported


def _written(exported: ExportedProgram) -> list[str]:
    """The names of the buffers that a run writes to. Only a functional program tells them."""
    try:
        with torch.no_grad():
            signature = exported.run_decompositions({}).graph_signature
    except (AssertionError, RuntimeError) as error:
        raise ExportError(
            f"torch cannot tell which buffers the model writes to ({error}): register each of them once, as a buffer"
        ) from error
    for spec in signature.output_specs:
        if spec.kind is OutputKind.USER_INPUT_MUTATION:
            raise ExportError(f"the model changes its input {spec.target} in place: let it return a new tensor")
        if spec.kind not in (OutputKind.USER_OUTPUT, OutputKind.BUFFER_MUTATION):
            raise ExportError(f"the model has an output of the kind {spec.kind.name}, expected tensors")
    return sorted(set(signature.buffers_to_mutate.values()))


def _values(exported: ExportedProgram) -> tuple[list[tuple[str, Any]], list[tuple[str, Any]]]:
    """Names and example values (fake tensors) of the inputs and of the outputs, in the order of a call."""
    nodes = {node.name: node for node in exported.graph.nodes}
    inputs = [
        (spec.arg.name, nodes[spec.arg.name].meta["val"])
        for spec in exported.graph_signature.input_specs
        if spec.kind is InputKind.USER_INPUT
    ]
    names = [
        getattr(spec.arg, "name", None)
        for spec in exported.graph_signature.output_specs
        if spec.kind is OutputKind.USER_OUTPUT
    ]
    outputs = [(f"output_{i}", nodes[name].meta["val"] if name else None) for i, name in enumerate(names)]
    for side, values in (("input", inputs), ("output", outputs)):
        for i, (name, value) in enumerate(values):
            if not isinstance(value, torch.Tensor):
                raise ExportError(f"{side} {i} ({name}) is {type(value).__name__}, expected a tensor")
            if value.dtype not in _DTYPES:
                raise ExportError(f"{side} {i} ({name}) is {value.dtype}, which tandem has no name for")
    return inputs, outputs


def _bounds(exported: ExportedProgram, size: int | torch.SymInt) -> tuple[int, int | None]:
    """The least and the greatest size of a dimension; None: no bound."""
    if isinstance(size, int):
        return size, size
    from torch.utils._sympy.value_ranges import bound_sympy

    expression = size.node.expr
    ranges = {symbol: exported.range_constraints[symbol] for symbol in expression.free_symbols}
    found = bound_sympy(expression, ranges)
    return int(found.lower), int(found.upper) if found.upper.is_finite is not False and found.upper < 2**53 else None


def _describe(exported: ExportedProgram, values: list[tuple[str, Any]]) -> list[dict[str, Any]]:
    described = []
    for name, value in values:
        bounds = [_bounds(exported, size) for size in value.shape]
        shape = [least if least == greatest else [least, greatest] for least, greatest in bounds]
        described.append({"name": name, "dtype": _DTYPES[value.dtype], "shape": shape})
    return described


def _device(exported: ExportedProgram) -> torch.device:
    devices = {t.device for t in [*exported.state_dict.values(), *exported.constants.values()]
               if isinstance(t, torch.Tensor)} or {value.device for _, value in _values(exported)[0]}  # fmt: skip
    devices = devices or {torch.device("cpu")}
    if len(devices) > 1:
        raise ExportError(f"the model is on {sorted(map(str, devices))}: move all of it to one device")
    device = devices.pop()
    if device.type not in ("cpu", "cuda"):
        raise ExportError(f"the model is on {device}, expected cpu or cuda")
    return device


def _features() -> str:
    """This processor's instruction sets, as the kernel names them."""
    for line in pathlib.Path("/proc/cpuinfo").read_text().splitlines():
        key, _, words = line.partition(":")
        if key.strip() in ("flags", "Features"):
            return " ".join(sorted(word for word in words.split() if _FEATURES.match(word)))
    return ""


def _contiguous_module(exported: ExportedProgram) -> torch.fx.GraphModule:
    """The exported graph with outputs that have no gaps, which is what a caller's tensor is."""
    module: torch.fx.GraphModule = exported.module(check_guards=False)
    output = module.graph.output_node()
    with module.graph.inserting_before(output):
        output.args = torch.fx.map_arg(
            output.args, lambda node: module.graph.call_function(torch.ops.aten.contiguous.default, (node,))
        )
    module.recompile()
    return module


def _compile(exported: ExportedProgram, torch_needed: bool, options: Mapping[str, Any] | None) -> bytes:
    inputs, outputs = _values(exported)
    device, written = _device(exported), _written(exported)
    chosen: dict[str, Any] = {
        "aot_inductor.package": True,
        "aot_inductor.package_constants_in_so": False,  # every load would have its own
        "aot_inductor.package_constants_on_disk_format": "binary_blob",
        "aot_inductor.link_libtorch": False,  # tandem binds it
    }
    if device.type == "cuda":
        chosen["aot_inductor.embed_kernel_binary"] = True
    if not torch_needed:
        chosen["use_joint_graph_passes"] = False  # else attention becomes a call of torch's own
        if device.type == "cuda":
            chosen.update({"max_autotune": True, "max_autotune_gemm_backends": "TRITON"})
    chosen.update(options or {})
    if (called := exported.call_spec.in_spec) is None:
        raise ExportError("the program does not tell how it is called: make it by torch.export.export")
    args, kwargs = _pytree.tree_unflatten([value for _, value in inputs], called)
    with torch.no_grad():
        files = torch._inductor.aot_compile(_contiguous_module(exported), args, kwargs, options=chosen)
    if not isinstance(files, list):
        raise ExportError(f"AOTInductor of torch {torch.__version__} made {files}, expected a list of files")
    library = [name for name in files if isinstance(name, str) and name.endswith(".so")]
    weights = [name for name in files if isinstance(name, str) and name.endswith(".blob")]
    if len(library) != 1 or len(weights) > 1:
        raise ExportError(f"AOTInductor of torch {torch.__version__} made {files}, expected one .so and one .blob")
    code = pathlib.Path(library[0]).read_bytes()
    metadata: dict[str, Any] = {
        "library_sha256": hashlib.sha256(code).hexdigest(),
        "torch": torch.__version__,
        "machine": platform.machine(),
        "device": device.type,
        "inputs": _describe(exported, inputs),
        "outputs": _describe(exported, outputs),
        "mutable": written,
    }
    if device.type == "cuda":
        metadata["capability"] = "{}.{}".format(*torch.cuda.get_device_capability(device))
    else:
        metadata["features"] = _features()
    return _join(
        json.dumps(metadata).encode(),
        code,
        pathlib.Path(weights[0]).read_bytes() if weights else b"",
    )


def _join(metadata: bytes, library: bytes, weights: bytes) -> bytes:
    """The payload that vendors/aotinductor/payload.c reads."""
    parts = [b"", metadata, library, weights]
    offsets, at = [], _HEADER.size
    for part in parts[1:]:
        at += -at % _ALIGNMENT
        offsets.append(at)
        at += len(part)
    fields = [number for offset, part in zip(offsets, parts[1:], strict=True) for number in (offset, len(part))]
    data = bytearray(at)
    _HEADER.pack_into(data, 0, _MAGIC, *fields)
    for offset, part in zip(offsets, parts[1:], strict=True):
        data[offset : offset + len(part)] = part
    return bytes(data)


def _build_program(exported: ExportedProgram, payload: bytes, method: str) -> Any:
    """A program that calls one delegate: inputs are read where the caller has them, outputs are planned."""
    from executorch.exir import schema  # type: ignore[import-untyped]
    from executorch.exir._serialize._program import (  # type: ignore[import-untyped]
        PTEFile,
        serialize_pte_binary,
    )
    from executorch.exir.tensor import scalar_type_enum  # type: ignore[import-untyped]

    values: list[schema.EValue] = []
    planned = 0
    inputs, outputs = _values(exported)
    for index, (name, value) in enumerate([*inputs, *outputs]):
        bounds = [_bounds(exported, size) for size in value.shape]
        sizes = []
        for dimension, (_, greatest) in enumerate(bounds):
            if greatest is None:
                raise ExportError(
                    f"dimension {dimension} of {name} has no greatest size, which ExecuTorch needs to plan memory: "
                    'give it one with torch.export.Dim("name", max=...)'
                )
            sizes.append(greatest)
        place = None
        if index >= len(inputs):
            planned += -planned % 16
            place = schema.AllocationDetails(1, planned & 0xFFFFFFFF, planned >> 32)
            planned += value.dtype.itemsize * int(torch.Size(sizes).numel())
        dynamic = any(least != greatest for least, greatest in bounds)
        shapes = schema.TensorShapeDynamism
        tensor = schema.Tensor(
            scalar_type=scalar_type_enum(value.dtype),
            storage_offset=0,
            sizes=sizes,
            dim_order=list(range(len(sizes))),
            requires_grad=False,
            layout=0,
            data_buffer_idx=0,
            allocation_info=place,
            shape_dynamism=shapes.DYNAMIC_BOUND if dynamic else shapes.STATIC,
        )
        values.append(schema.EValue(tensor))
    places = list(range(len(values)))
    call = exported.call_spec
    plan = schema.ExecutionPlan(
        name=method,
        container_meta_type=schema.ContainerMetadata(
            *(_pytree.treespec_dumps(spec) if spec else "" for spec in (call.in_spec, call.out_spec))
        ),
        values=values,
        inputs=places[: len(inputs)],
        outputs=places[len(inputs) :],
        chains=[schema.Chain([], [], [schema.Instruction(schema.DelegateCall(0, places))], None)],
        operators=[],
        delegates=[
            schema.BackendDelegate(
                "TandemAotiBackend", schema.BackendDelegateDataReference(schema.DataLocation.INLINE, 0), []
            )
        ],
        non_const_buffer_sizes=[0, planned],
    )
    program = schema.Program(
        version=0,
        execution_plan=[plan],
        constant_buffer=[schema.Buffer(b"")],
        backend_delegate_data=[schema.BackendDelegateInlineData(payload)],
        segments=[],
        constant_segment=schema.SubsegmentOffsets(segment_index=0, offsets=[]),
        mutable_data_segments=None,
    )
    return serialize_pte_binary(PTEFile(program), extract_delegate_segments=True, segment_alignment=_ALIGNMENT)
