"""Makes the programs in tests/data that the adapter's tests run. Not part of a build.

    ./dev python tests/adapter/make_fixtures.py tests/data

It needs torch and executorch. Programs cuda_* are for the stand-in engine "rows" of tests/standin/aoti.h, whose library
and weights the test has. A payload for DemoBackend, which tests/adapter/demo_vendor.h runs, is
"DEMO" | u32 version | f32 scale | f32 bias | u32 size | size bytes, or "DEMK" | key, the payload then being
the named data of that key. It computes y = x * scale + bias.
"""

import math
import pathlib
import struct
import sys

import torch
from executorch.exir import EdgeCompileConfig, ExecutorchBackendConfig, to_edge_transform_and_lower
from executorch.exir.backend.backend_details import BackendDetails, PreprocessResult
from executorch.exir.backend.compile_spec_schema import CompileSpec
from executorch.exir.backend.partitioner import DelegationSpec, Partitioner, PartitionResult
from executorch.exir.backend.utils import tag_constant_data
from executorch.exir.dialects._ops import ops
from executorch.exir.passes import MemoryPlanningPass
from executorch.exir.passes.propagate_device_config import PropagateDeviceConfig
from torch.fx.passes.infra.partitioner import CapabilityBasedPartitioner
from torch.fx.passes.operator_support import OperatorSupportBase

MUL = ops.edge.aten.mul.Tensor
ADD = ops.edge.aten.add.Tensor


def constant(program, node):
    import torch._export.utils as lookup

    if isinstance(node, (int, float)):
        return float(node)
    for holds, get in (
        (lookup.is_buffer, lookup.get_buffer),
        (lookup.is_param, lookup.get_param),
        (lookup.is_lifted_tensor_constant, lookup.get_lifted_tensor_constant),
    ):
        if isinstance(node, torch.fx.Node) and holds(program, node):
            return float(get(program, node))
    return None


class CudaBackend(BackendDetails):
    """In ExecuTorch's place, whose own needs a GPU: the payload, without the data that it names."""

    @staticmethod
    def preprocess(program, compile_specs):
        def text(words):
            return struct.pack("<I", len(words)) + words

        payload = b"ETCUDAFQN3" + text(b"0a_so_blob") + struct.pack("<I", 3)
        for name, device, size, dtype, offset, shape in (
            (b"layer.weight", 1, 128, 6, 0, (8, 4)),
            (b"layer.bias", 1, 32, 6, 4, (4,)),
            (b"relu", 0, 8, 4, 0, ()),
        ):
            strides = [math.prod(shape[i + 1 :]) for i in range(len(shape))]
            payload += text(name) + text(b"cuda_fqn_weight:" + (b"cpu:", b"cuda:")[device] + name)
            payload += struct.pack("<QiiqI", size, dtype, device, offset, len(shape))
            payload += struct.pack(f"<{2 * len(shape)}q", *shape, *strides)
        return PreprocessResult(processed_bytes=payload)


class DemoBackend(BackendDetails):
    @staticmethod
    def preprocess(program, compile_specs):
        specs = {spec.key: spec.value for spec in compile_specs}
        scale, bias = 1.0, 0.0
        for node in program.graph.nodes:
            if node.op == "call_function" and node.target in (MUL, ADD):
                value = constant(program, node.args[1])
                scale, bias = (scale * value, bias * value) if node.target == MUL else (scale, bias + value)
        payload = b"DEMO" + struct.pack("<IffI", 1, scale, bias, 0)
        if "key" in specs:
            NAMED[specs["key"].decode()] = payload
            payload = b"DEMK" + specs["key"]
        return PreprocessResult(processed_bytes=payload)


NAMED = {}


class Support(OperatorSupportBase):
    def __init__(self, program):
        self.program = program

    def is_node_supported(self, submodules, node):
        return (
            node.op == "call_function"
            and node.target in (MUL, ADD)
            and constant(self.program, node.args[1]) is not None
        )


class AllButSine(OperatorSupportBase):
    def __init__(self, program):
        pass

    def is_node_supported(self, submodules, node):
        return node.op == "call_function" and node.target != ops.edge.aten.sin.default


class DemoPartitioner(Partitioner):
    def __init__(self, specs=(), backend=DemoBackend, support=Support):
        self.delegation_spec = DelegationSpec(backend.__name__, list(specs))
        self.support = support

    def partition(self, program):
        tags = {}
        finder = CapabilityBasedPartitioner(
            program.graph_module, self.support(program), allows_single_node_partition=True
        )
        for found in finder.propose_partitions():
            for node in found.nodes:
                node.meta["delegation_tag"] = f"tag{found.id}"
            tags[f"tag{found.id}"] = self.delegation_spec
        tag_constant_data(program)
        return PartitionResult(tagged_exported_program=program, partition_tags=tags)


class Affine(torch.nn.Module):
    def __init__(self, scale=2.0, bias=3.0):
        super().__init__()
        self.scale, self.bias = scale, bias

    def forward(self, x):
        return x * self.scale + self.bias


class Mixed(torch.nn.Module):
    def forward(self, x):
        return torch.sin(x * 2.0 + 3.0) * 0.5 + 1.0


class Times(torch.nn.Module):
    def forward(self, x, count: int):
        return (x * 2.0 + 3.0) * count


class Channels(torch.nn.Module):
    """From channels last to rows and back, and with channels last throughout."""

    def forward(self, last, rows):
        return (
            last.clone(memory_format=torch.contiguous_format),
            rows.clone(memory_format=torch.channels_last),
            -last,
        )


class Linear(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(4, 3)
        with torch.no_grad():
            self.linear.weight.copy_(torch.arange(12, dtype=torch.float32).reshape(3, 4) / 8)
            self.linear.bias.copy_(torch.tensor([1.0, -1.0, 0.5]))

    def forward(self, x):
        return self.linear(x)


class Layer(torch.nn.Module):
    """(rows, 8) -> (rows, 4), of the input or its sine, or the sine of that. Its values are not the programs'."""

    def __init__(self, sine=""):
        super().__init__()
        self.layer, self.sine = torch.nn.Linear(8, 4), sine

    def forward(self, x):
        y = torch.relu(self.layer(torch.sin(x) if self.sine == "before" else x))
        return torch.sin(y) if self.sine == "after" else y


class Convolution(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Conv2d(2, 3, 2)
        with torch.no_grad():
            self.layer.weight.copy_(torch.arange(24, dtype=torch.float32).reshape(3, 2, 2, 2) / 8)
            self.layer.bias.copy_(torch.tensor([1.0, -1.0, 0.5]))

    def forward(self, x):
        return self.layer(x)


def lower(module, arguments, partitioner, **export):
    program = torch.export.export(module.eval(), arguments, **export)
    return to_edge_transform_and_lower(
        program, partitioner=partitioner, compile_config=EdgeCompileConfig(_check_ir_validity=False)
    )


def write(folder, name, program):
    with open(folder / f"{name}.pte", "wb") as file:
        program.write_to_file(file)
    if program._tensor_data:
        (data,) = program._tensor_data
        program.write_tensor_data_to_file(str(folder))
        (folder / f"{data}.ptd").rename(folder / f"{name}.ptd")


def write_named(path, entries):
    """A .ptd of untyped entries, by ExecuTorch's own serializer."""
    from executorch.exir._serialize.data_serializer import DataEntry, DataPayload
    from executorch.extension.flat_tensor.serialize.serialize import FlatTensorSerializer

    payload = DataPayload(
        buffers=list(entries.values()),
        named_data={key: DataEntry(buffer_index=i, alignment=16, tensor_layout=None) for i, key in enumerate(entries)},
    )
    path.write_bytes(bytes(FlatTensorSerializer().serialize(payload)))


def main():
    folder = pathlib.Path(sys.argv[1])
    demo = [DemoPartitioner()]
    x = torch.zeros(2, 4)
    write(folder, "demo_affine", lower(Affine(), (x,), [DemoPartitioner([CompileSpec("greeting", b"hello")])]).to_executorch())
    write(folder, "demo_mixed", lower(Mixed(), (x,), demo).to_executorch())
    rows = torch.export.Dim("rows", min=1, max=64)
    write(folder, "demo_dynamic", lower(Affine(), (x,), demo, dynamic_shapes=({0: rows},)).to_executorch())
    both = to_edge_transform_and_lower(
        {
            "forward": torch.export.export(Affine().eval(), (x,)),
            "negate": torch.export.export(Affine(-1.0, 0.5).eval(), (x,)),
        },
        partitioner={"forward": demo, "negate": demo},
    )
    write(folder, "demo_methods", both.to_executorch())
    unplanned = ExecutorchBackendConfig(
        memory_planning_pass=MemoryPlanningPass(alloc_graph_input=False, alloc_graph_output=False)
    )
    write(folder, "demo_unplanned", lower(Affine(), (x,), demo).to_executorch(unplanned))
    write(folder, "demo_count", lower(Times(), (x, 5), demo).to_executorch())
    write(folder, "demo_named", lower(Affine(), (x,), [DemoPartitioner([CompileSpec("key", b"affine")])]).to_executorch())
    write_named(folder / "demo_named.ptd", NAMED)
    # As programs for CudaBackend are: copies to and from the device, and memory that is planned there.
    device = [DemoPartitioner([CompileSpec("target_device", b"cuda:0")])]
    write(folder, "demo_device", lower(Affine(), (x,), device, dynamic_shapes=({0: rows},)).to_executorch())
    write(folder, "demo_device_mixed", lower(Mixed(), (x,), device, dynamic_shapes=({0: rows},)).to_executorch())
    stays = ExecutorchBackendConfig(
        propagate_device_config=PropagateDeviceConfig(
            skip_h2d_for_method_inputs=True, skip_d2h_for_method_outputs=True
        )
    )
    write(folder, "demo_device_io", lower(Mixed(), (x,), device).to_executorch(stays))
    cuda = [DemoPartitioner([CompileSpec("target_device", b"cuda:0")], CudaBackend, AllButSine)]
    few = torch.export.Dim("rows", min=1, max=8)
    for name, sine, config in (
        ("cuda_layer", "", None),
        ("cuda_layer_sine", "after", None),
        ("cuda_sine_layer_io", "before", stays),
    ):
        layer = lower(Layer(sine), (torch.zeros(4, 8),), cuda, dynamic_shapes=({0: few},))
        write(folder, name, layer.to_executorch(config))
    image = torch.zeros(1, 2, 3, 4).to(memory_format=torch.channels_last)
    write(folder, "demo_channels", lower(Affine(), (image,), demo).to_executorch())
    write(folder, "demo_device_channels", lower(Mixed(), (image,), device).to_executorch(stays))
    batch = torch.export.Dim("batch", min=1, max=4)
    images = (torch.zeros(2, 2, 3, 4).to(memory_format=torch.channels_last), torch.zeros(2, 2, 3, 4))
    channels = lower(Channels(), images, [], dynamic_shapes=({0: batch}, {0: batch}))
    write(folder, "channels", channels.to_executorch())
    write(folder, "linear", lower(Linear(), (x,), []).to_executorch())
    external = lower(Linear(), (x,), []).to_executorch(ExecutorchBackendConfig(external_constants=True))
    write(folder, "linear_external", external)
    from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner

    write(folder, "linear_xnnpack", lower(Linear(), (x,), [XnnpackPartitioner()]).to_executorch())
    convolution = lower(Convolution(), (image,), [XnnpackPartitioner()])
    write(folder, "convolution_xnnpack_channels", convolution.to_executorch())


if __name__ == "__main__":
    main()
