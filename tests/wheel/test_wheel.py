"""The wheel where a user has it: in an environment with what it asks for, and without torch."""

import json
import re
import subprocess

import pytest
import wheels

OWN = "import tandem; print(tandem.Runtime.get())"


@pytest.fixture(scope="module")
def policy(environment, tmp_path_factory):
    """The demo's policy, small, written by the wheel's own command."""
    path = tmp_path_factory.mktemp("policy") / "policy.pte"
    environment.run("tandem", "demo", "--size", "4", "--keep", path)
    return path


def blocks_of_readme():
    text = (wheels.ROOT / "README.md").read_text(encoding="utf-8")
    return re.findall(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)


def test_what_it_asks_for_is_enough_and_torch_is_not_asked_for(environment):
    assert "No broken requirements" in environment.run("pip", "check").stdout
    names = {row["name"] for row in json.loads(environment.run("pip", "list", "--format", "json").stdout)}
    assert {"tandem-rt", "executorch", "openvino", "numpy"} <= names and "torch" not in names


def test_the_readmes_lines_for_the_own_runtime_run_with_numpy_alone(environment, policy, tmp_path):
    own = [block for block in blocks_of_readme() if "tandem.Runtime" in block]
    assert len(own) == 1, f"README.md has {len(own)} Python blocks with tandem.Runtime, expected 1"
    script = tmp_path / "two_arms.py"
    script.write_text(own[0])
    done = environment.run("python", script, policy, cwd=policy.parent)
    assert done.stdout == "True\n2 loads, 1 engine\n"
    assert "`True` and `2 loads, 1 engine`" in (wheels.ROOT / "README.md").read_text(encoding="utf-8")


def test_two_loads_share_one_engine(environment, policy):
    code = """
import sys
import numpy as np
import tandem
arms = [tandem.Runtime.get().load_program(sys.argv[1]).load_method("forward") for side in ("left", "right")]
inputs = [np.random.rand(1, 3, 96, 96).astype("f4"), np.zeros((1, 11), "i8"), np.random.rand(1, 8).astype("f4")]
left, right = (np.asarray(arm.execute(inputs)[0]).copy() for arm in arms)
assert np.array_equal(left, right) and left.any() and "torch" not in sys.modules
print(tandem.stats().loads, tandem.stats().engines)
"""
    assert environment.run("python", "-c", code, policy).stdout == "2 1\n"


def test_the_command_is_there(environment):
    assert (
        environment.run("tandem", "--version").stdout == environment.run("python", "-m", "tandem", "--version").stdout
    )
    text = environment.run("tandem", "doctor").stdout
    assert re.search(r"^ExecuTorch +found", text, re.MULTILINE) and re.search(r"^OpenVINO +found", text, re.MULTILINE)


def shadow(folder, **files):
    """A folder that stands before the environment's packages; a name's dots are folders."""
    for name, text in files.items():
        path = folder.joinpath(*name.split("__in__")).with_suffix(".py")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return {"PYTHONPATH": str(folder)}


@pytest.mark.parametrize("version", ["1.4.1", "1.6.0", "2.0.0"])
def test_an_executorch_of_another_version_is_refused_by_name(environment, tmp_path, version):
    variables = shadow(tmp_path, executorch__in____init__="", executorch__in__version=f'__version__ = "{version}"\n')
    library = environment.packages / "executorch/lib/libexecutorch.so"
    (tmp_path / "executorch/lib").mkdir()
    (tmp_path / "executorch/lib/libexecutorch.so").symlink_to(library)
    last = environment.run("python", "-c", OWN, status=1, env=variables).stderr.splitlines()[-1]
    assert last.startswith("ImportError: ") and version in last and "pip install executorch==1.5.1" in last


COMMANDS = (("tandem",), ("python", "-m", "tandem"))


@pytest.mark.parametrize("version", [None, "1.4.1"])
@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_without_a_fitting_executorch_the_command_tells_what_is_missing(environment, tmp_path, command, version):
    files = {"executorch__in____init__": ""}
    if version:
        files["executorch__in__version"] = f'__version__ = "{version}"\n'
        (tmp_path / "executorch/lib").mkdir(parents=True)
        (tmp_path / "executorch/lib/libexecutorch.so").touch()
    variables = shadow(tmp_path, **files)

    def run(*arguments, status):
        done = environment.run(*command, *arguments, status=status, env=variables)
        assert len(done.stderr.splitlines()) == (status != 0), done.stderr
        assert done.stderr.startswith("tandem: ") or not done.stderr
        return done

    document = json.loads(run("doctor", "--json", status=1).stdout)
    assert document["usable"] is False and document["executorch"]["mend"] == "pip install executorch==1.5.1"
    assert (version or "libexecutorch.so") in document["executorch"]["reason"]
    assert "to mend: pip install executorch==1.5.1\n" in run("doctor", status=1).stdout
    assert "doctor and disable" in run("--help", status=0).stdout
    hook = environment.packages / "tandem-executorch.pth"
    hook.touch()
    assert str(hook) in run("disable", status=0).stdout and not hook.exists()
    for arguments in (["enable"], ["run", "x.py"], ["run", "x.pte"], ["inspect", "x.pte"], ["fly"]):
        assert "pip install executorch==1.5.1" in run(*arguments, status=1).stderr
    assert not hook.exists()


def test_an_executorch_without_its_runtime_is_told(environment, tmp_path):
    variables = shadow(tmp_path, executorch__in____init__="")
    last = environment.run("python", "-c", OWN, status=1, env=variables).stderr.splitlines()[-1]
    assert last.startswith("ImportError: ") and "libexecutorch.so" in last and str(tmp_path) in last


def test_a_library_that_is_no_openvino_is_refused_by_name(environment, policy, tmp_path):
    code = f"import tandem; tandem.Runtime.get().load_program({str(policy)!r}).load_method('forward')"
    other = environment.packages / "executorch/lib/libexecutorch.so"
    variables = {"TANDEM_OPENVINO_LIBRARY": str(other)}
    last = environment.run("python", "-c", code, status=1, env=variables).stderr.splitlines()[-1]
    assert str(other) in last and "penvino" in last.lower(), last


def test_an_openvino_of_another_version_is_refused_by_name(environment, policy, tmp_path):
    (real,) = (environment.packages / "openvino/libs").glob("libopenvino_c.so.*")
    names = wheels.exported_symbols(real) - {"ov_get_openvino_version"}
    source = tmp_path / "old.c"
    source.write_text(
        "".join(f"int {name}(void) {{ return -1; }}\n" for name in sorted(names) if name.startswith("ov_"))
        + "struct version { const char *build, *description; };\n"
        + 'int ov_get_openvino_version(struct version *v) { v->build = "2024.6.0-17404"; return 0; }\n'
    )
    old = tmp_path / "libopenvino_c.so"
    subprocess.run(["cc", "-shared", "-fPIC", source, "-o", old], check=True, timeout=60)
    code = f"import tandem; tandem.Runtime.get().load_program({str(policy)!r}).load_method('forward')"
    done = environment.run("python", "-c", code, status=1, env={"TANDEM_OPENVINO_LIBRARY": str(old)})
    last = done.stderr.splitlines()[-1]
    assert f"{old} is OpenVINO 2024.6" in last and "2025.4 to 2026" in last and "pip install" in last, last


def test_an_uninstall_leaves_nothing(environment):
    environment.run("pip", "uninstall", "--quiet", "--yes", "tandem-rt")
    try:
        assert environment.files() == environment.before
    finally:
        environment.run("pip", "install", "--quiet", "--no-index", f"{wheels.find_wheel()}[openvino]")
