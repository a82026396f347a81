"""AOTInductor programs beside the torch that Python imported and without one, and what tandem.export refuses."""

import json
import os
import pathlib
import subprocess
import sys

import pytest

torch = pytest.importorskip("torch")

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[1]
BUILD = pathlib.Path(os.environ.get("TANDEM_BUILD", ROOT / "build/release"))
PLUGIN = os.environ.get("TANDEM_EXECUTORCH_LIBRARY") or str(BUILD / "libtandem_executorch.so")

sys.path[:0] = [str(ROOT / "python/tandem"), str(HERE)]
import export  # noqa: E402

# The stock runtime with tandem's plug-in; `first` is what the process imports before it. Two loads take turns, each
# with inputs of its own. Prints JSON.
PROGRAM = """
import json, sys
{first}
sys.path.insert(0, {peers!r})
import host
plugin = host.Tandem()
stock = host.Host(plugin)
import torch

loads = [stock.load({path!r}), stock.load({path!r})]
outputs = [[], []]
for at in range(4):
    for load, sign, output in zip(loads, (1.0, -1.0), outputs):
        output.append(load.method.execute([torch.full((1, 16), sign * at), torch.tensor([at])])[0].tolist())
stats = plugin.stats()
matrix = torch.arange(16.0).reshape(4, 4)
print(json.dumps({{
    "outputs": outputs,
    "engines": stats.engines,
    "loads": stats.loads,
    "torches": sorted({{line.split()[-1] for line in open("/proc/self/maps") if "/libtorch_cpu.so" in line}}),
    "product": (matrix @ matrix).tolist(),
}}))
"""


@pytest.fixture(scope="session")
def folder():
    ready = os.environ.get("TANDEM_AOTINDUCTOR_MODELS")
    if ready:
        return pathlib.Path(ready)
    made = subprocess.run([sys.executable, HERE / "make_models.py"], capture_output=True, text=True, timeout=900)
    assert made.returncode == 0, made.stderr[-4000:]
    return pathlib.Path(made.stdout.strip())


def run_python(code, **environment):
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=300, env={**os.environ, **environment}
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize("first", ["", "import torch", "import torch, torch._inductor"])
def test_two_loads_share_beside_the_torch_of_the_process(folder, first):
    import make_models

    code = PROGRAM.format(first=first, peers=str(ROOT / "tests/python"), path=str(folder / "cache.pte"))
    seen = run_python(code, TANDEM_TORCH_LIBRARY="", TANDEM_EXECUTORCH_LIBRARY=PLUGIN)
    assert (seen["engines"], seen["loads"]) == (1, 2)
    assert len(seen["torches"]) == 1, "a second torch was loaded"
    matrix = torch.arange(16.0).reshape(4, 4)
    assert seen["product"] == (matrix @ matrix).tolist()
    for sign, outputs in zip((1.0, -1.0), seen["outputs"], strict=True):
        model = make_models.Cache()
        with torch.no_grad():
            eager = [model(torch.full((1, 16), sign * at), torch.tensor([at])) for at in range(4)]
        torch.testing.assert_close([torch.tensor(y) for y in outputs], eager, rtol=1e-5, atol=1e-5)


def run_tandem(*arguments, **environment):
    return subprocess.run(
        [BUILD / "tandem", *map(str, arguments)], capture_output=True, text=True, timeout=300,
        env={**os.environ, **environment},
    )  # fmt: skip


def test_a_process_without_torch_finds_the_one_that_is_named(folder):
    torch_library = (folder / "torch_library").read_text()
    done = run_tandem("run", folder / "plain.pte", "--json", "--loads", "3", TANDEM_TORCH_LIBRARY=torch_library)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert told["vendor"] == "aotinductor" and told["outputs_equal"]
    assert [load["shared"] for load in told["loads"]] == [False, True, True]


def test_a_torch_that_is_named_and_not_there_is_an_error_that_says_so(folder):
    done = run_tandem("run", folder / "plain.pte", TANDEM_TORCH_LIBRARY="/nowhere/libtorch_cpu.so")
    assert done.returncode == 1
    assert "TANDEM_TORCH_LIBRARY=/nowhere/libtorch_cpu.so cannot be used" in done.stderr


def test_inspect_tells_what_a_program_has(folder):
    done = run_tandem("inspect", folder / "cache.pte")
    assert done.returncode == 0, done.stderr
    for line in ("TandemAotiBackend", "device: cpu", f"torch_version: {torch.__version__}", "state 0: keys"):
        assert line in done.stdout


@pytest.mark.parametrize("place", [0x28, 0x200, 0x1000])  # of the ELF header, of its tables, of what follows
def test_damage_in_the_compiled_library_is_told_before_it_is_opened(folder, place, tmp_path):
    program = bytearray((folder / "plain.pte").read_bytes())
    program[program.index(b"\x7fELF") + place] ^= 0xFF
    damaged = tmp_path / "damaged.pte"
    damaged.write_bytes(program)
    torch_library = (folder / "torch_library").read_text()
    done = run_tandem("run", damaged, TANDEM_TORCH_LIBRARY=torch_library)
    (line,) = [each for each in done.stderr.splitlines() if each.startswith("tandem:")]
    assert done.returncode == 1 and "the program is damaged: its compiled library" in line, done.stderr


def test_the_demo_compiles_a_policy_and_its_second_load_costs_no_weights(folder):
    torch_library = (folder / "torch_library").read_text()
    done = run_tandem("demo", "--vendor", "aotinductor", "--size", 8, "--json", TANDEM_TORCH_LIBRARY=torch_library)
    assert done.returncode == 0, done.stderr
    shared = json.loads(done.stdout)["shared"]
    assert shared["vendor"] == "aotinductor" and shared["outputs_equal"]
    assert [load["shared"] for load in shared["loads"]] == [False, True]
    assert shared["loads"][1]["host_private_bytes"] < 2 << 20


class Steps(torch.nn.Module):
    def forward(self, pose, *, steps):
        return {"actions": (steps["left"] + pose).transpose(0, 1), "pose": pose}


def test_keyword_inputs_shapes_by_name_and_outputs_with_gaps_are_exported(tmp_path):
    model, rows, steps = Steps().eval(), torch.export.Dim("rows", min=2, max=8), {"left": torch.rand(3, 4)}
    shapes = {"pose": None, "steps": {"left": {0: rows}}}
    args = (torch.rand(4),)
    exported = torch.export.export(model, args, {"steps": steps}, dynamic_shapes=shapes, strict=False)
    by_hand, in_one = tmp_path / "by_hand.pte", tmp_path / "in_one.pte"
    export.to_program(exported, path=by_hand)
    export.to_program(model, args, in_one, kwargs={"steps": steps}, dynamic_shapes=shapes)
    code = "import json, sys; sys.path.insert(0, {peers!r}); import host, torch; plugin = host.Tandem()\n"
    code += "method = host.Host(plugin).load({path!r}).method; pose, left = torch.arange(4.0), torch.ones(5, 4)\n"
    code += "print(json.dumps([output.tolist() for output in method.execute([pose, left])]))"
    pose = torch.arange(4.0)
    wanted = [(torch.ones(5, 4) + pose).T.tolist(), pose.tolist()]
    for path in (by_hand, in_one):
        text = code.format(peers=str(ROOT / "tests/python"), path=str(path))
        assert run_python(text, TANDEM_TORCH_LIBRARY="", TANDEM_EXECUTORCH_LIBRARY=PLUGIN) == wanted


class Changes(torch.nn.Module):
    def forward(self, x):
        return x.add_(1)


class Number(torch.nn.Module):
    def forward(self, x):
        return x, 3


class Alias(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("total", torch.zeros(2))
        self.same = self.total

    def forward(self, x):
        self.same.add_(x)
        return self.total * 2


@pytest.mark.parametrize(
    ("model", "args", "words"),
    [
        (Alias().eval(), (torch.ones(2),), "register each of them once"),
        (Changes().eval(), (torch.ones(2),), "changes its input"),
        (Number().eval(), (torch.ones(2),), "output 1 .* is NoneType|output 1 .* expected"),
        (torch.nn.Linear(2, 2), (torch.ones(2),), r"model\.eval\(\)"),
        (torch.nn.Identity().eval(), (torch.ones(2, dtype=torch.complex64),), "complex64"),
    ],
)
def test_a_model_that_does_not_fit_is_refused_by_name(model, args, words):
    with pytest.raises(export.ExportError, match=words):
        export.to_payload(model, args)


def test_a_dimension_without_a_greatest_size_is_named(tmp_path):
    exported = export._export(torch.nn.Identity().eval(), (torch.ones(4),), None, ({0: torch.export.Dim("rows")},))
    with pytest.raises(export.ExportError, match="dimension 0 of input has no greatest size"):
        export._build_program(exported, b"", "forward")


def test_a_failed_export_leaves_no_file(tmp_path):
    with pytest.raises(export.ExportError):
        export.to_program(Changes().eval(), (torch.ones(2),), tmp_path / "model.pte")
    assert list(tmp_path.iterdir()) == []
