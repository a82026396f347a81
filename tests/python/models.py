"""Makes the programs that the tests load, and what OpenVINO itself answers for them.

Run as `python models.py DIRECTORY [NAME...]` by conftest, in a process of its own: a payload is bound to the
OpenVINO version and instruction set that made it, so programs are made on the machine that loads them. With the
site-packages of another OpenVINO first in PYTHONPATH it makes payloads of that version.

Each program gets NAME.pte and NAME.<method>.npz with in0.., out0..: the answers come from OpenVINO's own `infer` on
the payloads as they lie in the .pte, with torch only for the operators that are not delegated.
"""

import importlib.util
import pathlib
import sys
import types
import warnings

import numpy as np
import torch

# executorch.backends.openvino's own __init__ wants a quantizer's dependencies; its partitioner does not.
_package = types.ModuleType("executorch.backends.openvino")
_package.__path__ = [importlib.util.find_spec("executorch").submodule_search_locations[0] + "/backends/openvino"]
sys.modules["executorch.backends.openvino"] = _package

import openvino  # noqa: E402
from executorch.backends.openvino import preprocess  # noqa: E402
from executorch.backends.openvino.partitioner import OpenvinoPartitioner  # noqa: E402
from executorch.exir import ExecutorchBackendConfig, to_edge_transform_and_lower  # noqa: E402
from executorch.exir._serialize._program import deserialize_pte_binary  # noqa: E402
from executorch.exir.backend.compile_spec_schema import CompileSpec  # noqa: E402
from executorch.exir.schema import DelegateCall  # noqa: E402

BATCH = torch.export.Dim("batch", min=1, max=32)


def mlp(seed):
    torch.manual_seed(seed)
    return torch.nn.Sequential(
        torch.nn.Linear(64, 128), torch.nn.ReLU(), torch.nn.Linear(128, 128), torch.nn.GELU(), torch.nn.Linear(128, 10)
    ).eval()


class Chain(torch.nn.Module):
    """Two delegates with an operator between them that OpenVINO's partitioner leaves alone."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(5)
        self.first, self.second = torch.nn.Linear(64, 64), torch.nn.Linear(64, 10)
        self.angle = torch.nn.Parameter(torch.randn(4, 64))

    def forward(self, x):
        return self.second(torch.atan2(self.first(x), self.angle))


class Embedding(torch.nn.Module):
    """A table of bytes, which OpenVINO reads where it lies in the payload."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(6)
        self.register_buffer("table", torch.randint(0, 255, (8192, 512), dtype=torch.uint8))

    def forward(self, ids, bytes_):
        look_up = torch.nn.functional.embedding
        return look_up(ids, self.table), look_up(bytes_.to(torch.int64), self.table)


class Dtypes(torch.nn.Module):
    def forward(self, boolean, u8, i8, i32, i64, half, double):
        return torch.logical_not(boolean), u8 + u8, i8 * 2, i32 + 7, i64 - 9, half * half, double * 0.5


class Convolution(torch.nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(8)
        self.layer = torch.nn.Conv2d(3, 6, 3, padding=1)

    def forward(self, x):
        return torch.relu(self.layer(x))


class ChannelsLast(Convolution):
    """Its output is to lie channels last, by either of torch's ways to ask for that."""

    def __init__(self, way):
        super().__init__()
        self.way = way

    def forward(self, x):
        y = super().forward(x)
        last = torch.channels_last
        return y.clone(memory_format=last) if self.way == "clone" else y.to(memory_format=last)


def big():
    torch.manual_seed(1)
    return torch.nn.Sequential(
        *[layer for _ in range(6) for layer in (torch.nn.Linear(2560, 2560), torch.nn.ReLU())]
    ).eval()


def accumulator():
    """A compiled model that adds up its inputs in a variable, as OpenVINO keeps the state of a model."""
    from openvino import opset13 as ops

    x = ops.parameter([1, 8], np.float32, name="x")
    read = ops.read_value(ops.constant(np.zeros((1, 8), np.float32)), "sum", np.float32, [1, 8])
    total = ops.add(read, x)
    model = openvino.Model([ops.result(total)], [ops.assign(total, "sum")], [x], "accumulator")
    return openvino.Core().compile_model(model, "CPU")


def lower(method, arguments, *, dynamic=None, specs=(), data=None):
    """`method`: a module, or modules by method name; `data`: constants outside delegates go to that .ptd."""
    methods = method if isinstance(method, dict) else {"forward": method}
    exported = {n: torch.export.export(m, arguments, dynamic_shapes=dynamic) for n, m in methods.items()}
    specs = [CompileSpec("device", b"CPU"), *(CompileSpec(k, v.encode()) for k, v in specs)]
    edge = to_edge_transform_and_lower(exported, partitioner={n: [OpenvinoPartitioner(specs)] for n in methods})
    return edge.to_executorch(ExecutorchBackendConfig(external_constants=data is not None))


def payloads(pte, method):
    """The bytes that each delegate of a method gets, in the order in which they run."""
    program = deserialize_pte_binary(pte).program
    plan = next(plan for plan in program.execution_plan if plan.name == method)
    calls = [i.instr_args.delegate_index for i in plan.chains[0].instructions if isinstance(i.instr_args, DelegateCall)]
    return [bytes(program.backend_delegate_data[plan.delegates[call].processed.index].data) for call in calls]


def infer(payload, inputs):
    """What OpenVINO answers for a payload, with its own defaults."""
    request = openvino.Core().import_model(payload, "CPU").create_infer_request()
    tensors = {i: openvino.Tensor(np.ascontiguousarray(value)) for i, value in enumerate(inputs)}
    request.infer(tensors)
    return [np.array(output.data) for output in request.output_tensors]


def save(folder, name, method, inputs, outputs, eager=None):
    arrays = {f"in{i}": np.asarray(value) for i, value in enumerate(inputs)}
    arrays |= {f"out{i}": value for i, value in enumerate(outputs)}
    if eager is not None:  # OpenVINO may compute in bf16: this only tells a wrong operand order from a right one
        for found, wanted in zip(outputs, eager if isinstance(eager, tuple) else (eager,), strict=True):
            wanted = wanted.detach().numpy()
            assert found.dtype == wanted.dtype and found.shape == wanted.shape, (name, found.dtype, found.shape)
            assert np.allclose(found.astype(np.float64), wanted.astype(np.float64), rtol=0.05, atol=0.05), name
    np.savez(folder / f"{name}.{method}.npz", **arrays)


def write(folder, name, program):
    pte = bytes(program.buffer)
    (folder / f"{name}.pte").write_bytes(pte)
    return pte


def make_simple(folder, name, module, arguments, **options):
    pte = write(folder, name, lower(module, arguments, **options))
    with torch.no_grad():
        inputs = [value.numpy() for value in arguments]
        (payload,) = payloads(pte, "forward")
        save(folder, name, "forward", inputs, infer(payload, inputs), module(*arguments))


def rows(count, seed=3):
    return torch.randn(count, 64, generator=torch.Generator().manual_seed(seed))


def make_mlp(folder):
    make_simple(folder, "mlp", mlp(0), (rows(4),))


def replace(folder, name, pairs):
    """mlp.pte with some bytes of its weights exchanged for others of equal length, and OpenVINO's answers for it."""
    pte = bytearray((folder / "mlp.pte").read_bytes())
    for old, new in pairs:
        assert len(old) == len(new) and pte.count(old) == 1
        place = pte.index(old)
        pte[place : place + len(old)] = new
    (folder / f"{name}.pte").write_bytes(pte)
    (payload,) = payloads(bytes(pte), "forward")
    outputs = infer(payload, [rows(4).numpy()])
    with np.load(folder / "mlp.forward.npz") as data:
        assert not np.array_equal(outputs[0], data["out0"])
    return outputs


def weights(module):
    return [value.detach().numpy().tobytes() for value in module.parameters()]


def make_mlp_other(folder):
    """Names, shapes and sizes of mlp, all weights of another one."""
    outputs = replace(folder, "mlp_other", zip(weights(mlp(0)), weights(mlp(1)), strict=True))
    save(folder, "mlp_other", "forward", [rows(4).numpy()], outputs, mlp(1)(rows(4)))


def make_mlp_one_bit(folder):
    """mlp with the sign of its last bias turned."""
    bias = weights(mlp(0))[-1]
    outputs = replace(folder, "mlp_one_bit", [(bias, bias[:-1] + bytes([bias[-1] ^ 0x80]))])
    save(folder, "mlp_one_bit", "forward", [rows(4).numpy()], outputs)


def make_mlp_dynamic(folder):
    module = mlp(0)
    pte = write(folder, "mlp_dynamic", lower(module, (rows(4),), dynamic=({0: BATCH},)))
    (payload,) = payloads(pte, "forward")
    for count in (1, 4, 32):
        inputs = [rows(count).numpy()]
        outputs = infer(payload, inputs)
        save(folder, "mlp_dynamic", f"forward{count}", inputs, outputs, module(rows(count)))


def make_multimethod(folder):
    torch.manual_seed(4)
    modules = {"forward": mlp(0), "embed": torch.nn.Sequential(torch.nn.Linear(64, 32), torch.nn.Tanh()).eval()}
    pte = write(folder, "multimethod", lower(modules, (rows(4),)))
    for method, module in modules.items():
        (payload,) = payloads(pte, method)
        save(folder, "multimethod", method, [rows(4).numpy()], infer(payload, [rows(4).numpy()]), module(rows(4)))


def make_chain(folder):
    module = Chain().eval()
    for name, external in (("chain", None), ("chain_external", True)):
        program = lower(module, (rows(4),), data=external)
        pte = write(folder, name, program)
        if external:
            program.write_tensor_data_to_file(str(folder))
        first, second = payloads(pte, "forward")
        (middle,) = infer(first, [rows(4).numpy()])
        middle = torch.atan2(torch.from_numpy(middle), module.angle).detach().numpy()
        save(folder, name, "forward", [rows(4).numpy()], infer(second, [middle]), module(rows(4)))


def make_big(folder):
    make_simple(folder, "big", big(), (torch.randn(1, 2560, generator=torch.Generator().manual_seed(3)),))


def make_embedding(folder):
    ids = torch.randint(0, 8192, (1, 24), generator=torch.Generator().manual_seed(3))
    make_simple(folder, "embedding", Embedding().eval(), (ids, torch.arange(5, dtype=torch.uint8)))


def make_dtypes(folder):
    values = torch.arange(-6, 6)
    integers = (values + 6).to(torch.uint8), values.to(torch.int8), values.to(torch.int32), values * 3
    make_simple(folder, "dtypes", Dtypes(), (values % 3 == 0, *integers, values.half() / 4, values.double() / 8))


def make_convolution(folder):
    image = torch.randn(2, 3, 8, 6, generator=torch.Generator().manual_seed(3))
    module = Convolution().eval()
    make_simple(folder, "convolution", module, (image,))
    portable = to_edge_transform_and_lower(torch.export.export(module, (image,))).to_executorch()
    write(folder, "convolution_portable", portable)
    write(folder, "convolution_last", lower(module, (image.to(memory_format=torch.channels_last),)))
    for way in "clone", "to":
        make_simple(folder, f"convolution_{way}", ChannelsLast(way).eval(), (image,))


def make_state(folder):
    """A stateful program: the exporter has no such thing, so its compiled model is replaced on the way."""
    stock = preprocess.openvino_compile
    preprocess.openvino_compile = lambda *_, **__: accumulator()
    try:
        pte = write(folder, "state", lower(torch.nn.ReLU(), (torch.ones(1, 8),)))
    finally:
        preprocess.openvino_compile = stock
    (payload,) = payloads(pte, "forward")
    request = openvino.Core().import_model(payload, "CPU").create_infer_request()
    x = np.arange(8, dtype=np.float32).reshape(1, 8)
    save(folder, "state", "forward", [x], [np.array(request.infer([x])[0]) for _ in range(3)])


def make_specs(folder):
    make_simple(folder, "spec_private", mlp(0), (rows(4),), specs=[("use_shared_engines", "false")])
    make_simple(folder, "spec_shared", mlp(0), (rows(4),), specs=[("use_shared_engines", "true"), ("num_threads", "1")])


MAKERS = {
    "mlp": make_mlp,
    "mlp_other": make_mlp_other,
    "mlp_one_bit": make_mlp_one_bit,
    "mlp_dynamic": make_mlp_dynamic,
    "multimethod": make_multimethod,
    "chain": make_chain,
    "big": make_big,
    "embedding": make_embedding,
    "dtypes": make_dtypes,
    "convolution": make_convolution,
    "state": make_state,
    "specs": make_specs,
}


def main():
    folder = pathlib.Path(sys.argv[1])
    warnings.filterwarnings("ignore")
    torch.manual_seed(2)
    for name in sys.argv[2:] or MAKERS:
        MAKERS[name](folder)


if __name__ == "__main__":
    main()
