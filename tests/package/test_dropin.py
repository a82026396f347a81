"""`import tandem` in front of unchanged ExecuTorch code: who wins, what is said, scripts and the start-up hook."""

import json
import os
import pathlib
import py_compile
import subprocess
import sys
import venv
import warnings
import zipfile

import doors
import host
import pytest

HERE = pathlib.Path(__file__).resolve().parent

# What a user has, as it stands; it prints nothing of tandem's.
UNCHANGED = """
import sys, torch
from executorch.runtime import Runtime
arms = [Runtime.get().load_program(sys.argv[1]).load_method("forward") for side in ("left", "right")]
outputs = [arm.execute([torch.ones(4, 64)])[0] for arm in arms]
assert torch.equal(*outputs)
"""
REPORT = """
import tandem
print(tandem.active(), tandem.stats().loads, tandem.stats().builds, tandem.stats().engines)
"""


def python(*arguments, environment=None, executable=sys.executable, cwd=None):
    return subprocess.run(
        [executable, *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=300,
        cwd=cwd,
        env={**os.environ, **(environment or {})},
    )


def own_lines(text):
    return [line for line in text.splitlines() if "tandem" in line.lower()]


@pytest.mark.fresh(timeout=120)
def test_unchanged_code_shares_one_engine_and_its_memory(models):
    import tandem
    from executorch.runtime import Runtime

    tandem.require()
    assert tandem.active() and tandem.active("OpenvinoBackend") and not tandem.active("XnnpackBackend")
    inputs, wanted = models.big.case()
    arms, growth = [], []
    for _ in range(3):
        before = doors.private_bytes()
        program = Runtime.get().load_program(models.big.path)
        arms.append(doors.Loaded("stock", program, program.load_method("forward")))
        growth.append(doors.private_bytes() - before)
    for arm in arms:
        host.same(arm(*inputs), wanted)
    stats = tandem.stats()
    assert (stats.builds, stats.engines, stats.loads, stats.hits) == (1, 1, 3, 2)
    mib = [figure / 2**20 for figure in growth]
    print("private MiB of each load:", mib)
    assert mib[0] > 30 and max(mib[1:]) < 1, mib


@pytest.mark.fresh(timeout=120)
def test_an_import_that_comes_late_warns_once_and_says_what_to_move(data, models_2025, library_2025):
    for name in ("OPENVINO_LIB_PATH", "TANDEM_OPENVINO_LIBRARY"):
        os.environ[name] = library_2025  # with 2026 the stock delegate reads freed bytes
    read, write = os.pipe()
    stderr = os.dup(2)
    os.dup2(write, 2)
    from executorch.runtime import Runtime

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        import tandem
        import tandem as again  # noqa: F401
    os.dup2(stderr, 2)
    os.close(write)
    assert own_lines(open(read).read()) == []
    (warning,) = [each for each in caught if "tandem" in str(each.message)]
    assert warning.category is RuntimeWarning and warning.filename == __file__
    assert 'move "import tandem" before executorch.runtime' in str(warning.message)
    assert not tandem.active() and not tandem.active("OpenvinoBackend") and tandem.active("TensorRTBackend")
    tandem.require("TensorRTBackend")
    for backend in (None, "OpenvinoBackend"):
        with pytest.raises(tandem.InvalidStateError, match='move "import tandem" before'):
            tandem.require(backend)
    with pytest.raises(tandem.NotFoundError, match="'Nobody' is no backend of tandem"):
        tandem.require("Nobody")

    # Both runtimes go on: the stock one with the stock delegate, and tandem's own shares.
    inputs, wanted = models_2025.mlp.case()
    program = Runtime.get().load_program(models_2025.mlp.path)
    stock = doors.Loaded("stock", program, program.load_method("forward"))
    host.same(stock(*inputs), wanted)
    assert tandem.stats().loads == 0
    own = doors.open_door("own")
    for arm in [own.load(models_2025.mlp) for _ in range(2)]:
        host.same(arm(*inputs), wanted)
    host.same(stock(*inputs), wanted)
    stats = tandem.stats()
    assert (stats.builds, stats.hits) == (1, 1)


@pytest.fixture(scope="session")
def inline_mlp(models, tmp_path_factory):
    """The mlp with its payload inside the flatbuffer."""
    from executorch.exir._serialize._program import deserialize_pte_binary, serialize_pte_binary

    path = tmp_path_factory.mktemp("inline") / "mlp.pte"
    program = deserialize_pte_binary(models.mlp.bytes)
    path.write_bytes(bytes(serialize_pte_binary(program, extract_delegate_segments=False)))
    return path


@pytest.mark.fresh(timeout=120)
def test_tandems_runtime_shares_after_a_late_import_as_it_does_after_a_timely_one(models, inline_mlp):
    """With the OpenVINO whose engines go on reading the program, which crashes the stock delegate."""
    import executorch.runtime  # noqa: F401

    with pytest.warns(RuntimeWarning, match="tandem"):
        import tandem
    own = doors.open_door("own")
    assert own.runtime.backend_registry.is_available("OpenvinoBackend")
    names = own.runtime.backend_registry.registered_backend_names
    assert names.count("OpenvinoBackend") == names.count("Openvino@tandem") == 1
    inputs, wanted = models.big.case()
    arms, growth = [], []
    for _ in range(3):
        before = doors.private_bytes()
        arms.append(own.load(models.big))
        growth.append(doors.private_bytes() - before)
    del arms[0].program
    for arm in arms:
        host.same(arm(*inputs), wanted)
    mib = [figure / 2**20 for figure in growth]
    print("private MiB of each load:", mib)
    assert max(mib[1:]) < 1, mib
    (info,) = arms[0].method.info
    assert (info.payload_bytes, info.users) == ("mapped", 3)
    stats = tandem.stats()
    assert (stats.builds, stats.engines, stats.loads) == (1, 1, 3)

    # From a path, from bytes, and inside the flatbuffer: one engine.
    inputs, wanted = models.mlp.case()
    contents = inline_mlp.read_bytes()
    small = [own.load(each) for each in (models.mlp.path, models.mlp.bytes, inline_mlp, contents)]
    for arm in small:
        host.same(arm(*inputs), wanted)
        assert arm.method.info[0].users == 4
    assert contents == inline_mlp.read_bytes() and tandem.stats().builds == 2
    alone = own.runtime.load_program(inline_mlp).load_method("forward", use_shared_engines=False)
    host.same(alone.execute(inputs), wanted)
    assert tandem.stats().builds == 3


def test_a_warning_of_a_late_import_can_be_an_error():
    code = "import executorch.runtime, warnings; warnings.simplefilter('error', RuntimeWarning); import tandem"
    done = python("-c", code)
    assert done.returncode == 1 and done.stderr.count('move "import tandem"') == 1, done.stderr


# ---------------------------------------------------------------- scripts

TELL = """
import json, sys
import __main__
tandem = "tandem" in sys.modules
print(json.dumps([sys.argv[1:], sys.path[0], __name__, __file__, __main__ is sys.modules["__main__"],
                  __main__.__dict__ is globals(), __spec__ and __spec__.name, tandem]))
print("to stderr", file=sys.stderr)
"""


@pytest.fixture
def scripts(tmp_path):
    for name in ("script.py", "folder/__main__.py", "package/__init__.py", "package/module.py"):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text("" if name.endswith("__init__.py") else TELL)
    (tmp_path / "fails.py").write_text("import sys\nsys.exit(7)\n")
    (tmp_path / "raises.py").write_text("raise KeyError('x')\n")
    return tmp_path


@pytest.mark.parametrize(
    "arguments", [["script.py", "-x", "--", "run"], ["folder", "a"], ["-m", "package.module", "--help"]]
)
def test_a_script_runs_as_python_would_run_it(arguments, scripts):
    plain, run = python(*arguments, cwd=scripts), python("-m", "tandem", "run", *arguments, cwd=scripts)
    assert run.returncode == plain.returncode == 0, run.stderr
    assert run.stderr == plain.stderr
    *facts, with_tandem = json.loads(run.stdout)
    *wanted, without = json.loads(plain.stdout)
    facts[1], wanted[1] = (os.path.join(scripts, facts[1]), os.path.join(scripts, wanted[1]))
    facts[3], wanted[3] = (os.path.join(scripts, facts[3]), os.path.join(scripts, wanted[3]))
    assert facts == wanted
    assert with_tandem and not without


def test_a_script_s_end_is_the_command_s(scripts):
    assert python("-m", "tandem", "run", "fails.py", cwd=scripts).returncode == 7
    done = python("-m", "tandem", "run", "raises.py", cwd=scripts)
    assert done.returncode == 1 and done.stderr.rstrip().endswith("KeyError: 'x'")
    for arguments, message in [
        (["run", "no.py"], "there is no file 'no.py'"),
        (["run", "-m"], "expected a module's name"),
        (["enable", "now"], "takes no argument, found 'now'"),
    ]:
        done = python("-m", "tandem", *arguments, cwd=scripts)
        assert done.returncode == 2 and done.stderr.startswith("tandem: ") and message in done.stderr, done
        assert done.stderr.count("\n") == 1


LATE = """
import atexit, pickle, sys, threading
class Thing:
    pass
def tell(who):
    copy = pickle.loads(pickle.dumps(Thing()))
    print(who, type(copy) is Thing, sys.modules["__main__"].__dict__ is globals(), flush=True)
def go_on():
    threading.main_thread().join()
    tell("thread")
threading.Thread(target=go_on).start()
atexit.register(tell, "at exit")
def fail():
    raise ValueError("the script's own")
fail()
"""


@pytest.fixture
def late_scripts(tmp_path):
    for name in ("script.py", "folder/__main__.py", "module.py"):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(LATE)
    (tmp_path / "unfinished.py").write_text("if True\n")
    (tmp_path / "interrupted.py").write_text("import os, signal\nos.kill(os.getpid(), signal.SIGINT)\n")
    (tmp_path / "hooked.py").write_text("import sys\nsys.excepthook = lambda *each: print(each[:2])\n1 / 0\n")
    with zipfile.ZipFile(tmp_path / "archive.pyz", "w") as archive:
        archive.writestr("__main__.py", LATE)
    py_compile.compile(tmp_path / "script.py", tmp_path / "compiled.pyc")
    return tmp_path


@pytest.mark.parametrize(
    "arguments",
    [
        ["script.py"],
        ["folder"],
        ["archive.pyz"],
        ["compiled.pyc"],
        ["-m", "module"],
        ["unfinished.py"],
        ["interrupted.py"],
        ["hooked.py"],
    ],
    ids=" ".join,
)
def test_what_outlives_a_script_s_main_thread_has_its_names_and_errors_show_its_frames_alone(arguments, late_scripts):
    plain, run = python(*arguments, cwd=late_scripts), python("-m", "tandem", "run", *arguments, cwd=late_scripts)
    assert (run.returncode, run.stdout) == (plain.returncode, plain.stdout), run.stderr
    assert run.returncode != 0 and "False" not in run.stdout
    # Of modules, folders and archives python shows its own frames, which are not the script's.
    told, wanted = (
        [line for line in each.splitlines() if "<frozen runpy>" not in line] for each in (run.stderr, plain.stderr)
    )
    assert told == wanted


def test_an_unchanged_script_shares(models, tmp_path):
    script = tmp_path / "two_arms.py"
    script.write_text(UNCHANGED + REPORT)
    done = python("-m", "tandem", "run", script, models.mlp.path)
    assert (done.returncode, done.stdout) == (0, "True 2 1 1\n"), done.stderr


def test_other_commands_are_the_executable_s(models):
    version = python("-c", "import tandem; print('tandem', tandem.__version__)").stdout
    assert python("-m", "tandem", "--version").stdout == version
    done = python("-m", "tandem", "run", models.mlp.path, "--repeat", "1", "--json")
    assert [load["shared"] for load in json.loads(done.stdout)["loads"]] == [False, True], done.stderr
    help_text = python("-m", "tandem", "--help").stdout
    assert help_text.index("usage:") < help_text.index("run PROGRAM") < help_text.index("run SCRIPT.py")
    for command in ("enable", "disable"):
        assert f"usage: tandem {command}" in python("-m", "tandem", command, "--help").stdout
    assert python("-m", "tandem", "nonsense").returncode == 2


# ---------------------------------------------------------------- the start-up hook


@pytest.fixture(scope="module")
def environment(tmp_path_factory):
    """A throw-away environment that sees the packages of this one, and tandem by a .pth that a test may remove."""
    import importlib.util

    folder = tmp_path_factory.mktemp("environment")
    venv.create(folder, with_pip=False, symlinks=True)
    (packages,) = folder.glob("lib/python3*/site-packages")
    here = pathlib.Path(importlib.util.find_spec("executorch").submodule_search_locations[0]).parent
    tandem = pathlib.Path(importlib.util.find_spec("tandem").submodule_search_locations[0]).parent
    (packages / "others.pth").write_text(f"{here}\n")
    (packages / "package.pth").write_text(f"{tandem}\n")

    def run(*arguments):
        return python(*arguments, executable=folder / "bin/python", environment={"PYTHONPATH": ""})

    run.packages = packages
    return run


def test_the_hook_loads_tandem_when_the_extension_comes_and_not_before(environment, models, tmp_path):
    hook = environment.packages / "tandem-executorch.pth"
    bare = "import sys; print(sorted(sys.modules))"
    modules = environment("-c", bare).stdout
    done = environment("-m", "tandem", "enable")
    assert done.stdout == f"enabled by {hook}\n" and hook.exists(), done.stderr
    assert environment("-c", bare).stdout == modules  # an interpreter without ExecuTorch imports nothing more
    assert environment("-m", "tandem", "enable").returncode == 0  # again is fine
    assert [each.name for each in environment.packages.glob("tandem*")] == [hook.name]
    script = tmp_path / "two_arms.py"
    script.write_text(UNCHANGED + REPORT)
    done = environment(script, models.mlp.path)
    assert (done.returncode, done.stdout) == (0, "True 2 1 1\n"), done.stderr

    # Uninstalled without disable: nothing is said, and ExecuTorch works.
    package = environment.packages / "package.pth"
    text = package.read_text()
    package.unlink()
    code = "import executorch.runtime, sys; print('tandem' in sys.modules)"
    done = environment("-c", code)
    assert (done.stdout, own_lines(done.stderr)) == ("False\n", []), done.stderr
    # Broken: one warning tells, and ExecuTorch works.
    broken = tmp_path / "broken"
    (broken / "tandem").mkdir(parents=True)
    (broken / "tandem/__init__.py").write_text("raise ImportError('no ExecuTorch for it')")
    package.write_text(f"{broken}\n")
    done = environment("-c", code)
    (line,) = own_lines(done.stderr)[:1]
    assert done.stdout == "False\n" and "tandem is enabled but not active: no ExecuTorch for it" in line
    package.write_text(text)

    done = environment("-m", "tandem", "disable")
    assert done.stdout == f"disabled: {hook} is removed\n" and not hook.exists()
    assert environment("-m", "tandem", "disable").stdout == f"there is no {hook}, nothing to disable\n"
    assert environment("-c", code).stdout == "False\n"


def test_a_folder_that_cannot_be_written_is_an_error_in_one_line(environment):
    script = "import sysconfig, tandem.__main__ as m, sys; sysconfig.get_path = lambda name: '/proc/nowhere'; "
    for command in ("enable", "disable"):
        done = environment("-c", script + f"sys.argv = ['tandem', '{command}']; m.main()")
        if command == "enable":
            assert done.returncode == 1 and done.stderr.count("\n") == 1 and "/proc/nowhere" in done.stderr, done
        else:
            assert done.returncode == 0 and "nothing to disable" in done.stdout
