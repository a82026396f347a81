"""`python -m tandem` and the command `tandem` of a wheel: scripts with tandem in front, enable, disable, and the rest.

`run` means two things, told apart by what follows: `-m MODULE`, a .py, .pyc or .pyz file or a folder with a
__main__.py is a Python program, which then runs as `python` would run it, with tandem imported first. Anything else,
a .pte program above all, goes with every other command to the `tandem` of the package, which replaces this process.

Without ExecuTorch neither that executable starts nor the package can be imported. Python imports the package before
this module is run, so the package then asks whether this command is the program, and lets it answer.
"""

from __future__ import annotations

import builtins
import importlib.machinery
import importlib.util
import json
import os
import pathlib
import pkgutil
import re
import subprocess
import sys
import types
import typing
from typing import NoReturn

from tandem import _hook, _libraries

HELP = """
of the Python package:

  run SCRIPT.py [ARGUMENTS]     run an unchanged script with tandem in front of ExecuTorch; also -m MODULE, a .pyz,
                                a folder with a __main__.py
  enable, disable               load tandem in every program of this environment that imports ExecuTorch's runtime
"""


def is_python_program(arguments: list[str]) -> bool:
    name = arguments[0] if arguments else ""
    return name == "-m" or name.endswith((".py", ".pyc", ".pyz")) or pathlib.Path(name, "__main__.py").is_file()


def find_program(name: str, is_module: bool) -> tuple[types.CodeType, importlib.machinery.ModuleSpec | None]:
    """The code of a module, of the __main__.py in a folder or archive, or of a script, which has no spec."""
    importer = None if is_module else pkgutil.get_importer(os.path.abspath(name))
    if not is_module and not importer:
        if name.endswith(".pyc"):
            code = importlib.machinery.SourcelessFileLoader("__main__", name).get_code("__main__")
            return typing.cast(types.CodeType, code), None
        return compile(pathlib.Path(name).read_bytes(), os.path.abspath(name), "exec", dont_inherit=True), None
    spec = importer.find_spec("__main__") if importer else importlib.util.find_spec(name)
    if is_module and spec and spec.submodule_search_locations is not None:
        spec = importlib.util.find_spec(f"{name}.__main__")
    code = getattr(spec and spec.loader, "get_code", lambda _: None)(spec.name if spec else "")
    if not code:
        fail(f"run: there is no module {name!r} to run" if is_module else f"run: there is no __main__.py in {name!r}")
    return code, spec


def run_python(arguments: list[str]) -> None:
    """As `python SCRIPT ...` or `python -m MODULE ...`: sys.argv, sys.path[0] and __main__ are the program's.

    __main__ stays the program's for good, since its exit handlers and threads outlive its last line. What it raises
    is told without the frames of this file.
    """
    is_module = arguments[0] == "-m"
    if is_module and len(arguments) < 2:
        fail("run -m: expected a module's name")
    sys.argv[:] = arguments[is_module:]
    name = sys.argv[0]
    if not is_module and not os.path.exists(name):
        fail(f"run: there is no file {name!r}")
    is_folder = not is_module and pkgutil.get_importer(name) is not None
    first = (
        os.getcwd() if is_module else os.path.abspath(name) if is_folder else str(pathlib.Path(name).resolve().parent)
    )
    if not getattr(sys.flags, "safe_path", False):
        sys.path[0] = first
    elif is_folder:
        sys.path.insert(0, first)
    code: types.CodeType | None = None
    try:
        code, spec = find_program(name, is_module)
        program = types.ModuleType("__main__")
        file = spec.origin if spec else code.co_filename if not name.endswith(".pyc") else os.path.abspath(name)
        package = spec.parent if spec else None
        loader = spec.loader if spec else importlib.machinery.SourceFileLoader("__main__", name)
        facts = {"__file__": file, "__spec__": spec, "__package__": package, "__loader__": loader}
        vars(program).update(facts, __builtins__=builtins, __cached__=spec and spec.cached, __annotations__={})
        if is_module:
            sys.argv[0] = file or name
        sys.modules["__main__"] = program
        exec(code, vars(program))
    except BaseException as error:
        trace = error.__traceback__
        while trace and trace.tb_frame.f_code is not code:
            trace = trace.tb_next
        tell = sys.excepthook
        sys.excepthook = lambda kind, value, _: tell(kind, value.with_traceback(trace), trace)
        raise


def fail(message: str, status: int = 2) -> NoReturn:
    print(f"tandem: {message}", file=sys.stderr)
    sys.exit(status)


def change_hook(command: str) -> None:
    try:
        if command == "enable":
            print(f"enabled by {_hook.enable()}")
        else:
            file = _hook.disable()
            print(f"disabled: {file} is removed" if file else f"there is no {_hook.find_file()}, nothing to disable")
    except OSError as error:
        fail(f"{command}: {error.strerror}: {_hook.find_file()}; use an environment that you may write to", status=1)


def run_command(arguments: list[str]) -> NoReturn:
    """The package's own executable. It finds libexecutorch where this package found it."""
    program = str(pathlib.Path(__file__).parent / "bin" / "tandem")
    folders = [str(_libraries.find_executorch().parent), *filter(None, [os.environ.get("LD_LIBRARY_PATH")])]
    environment = {**os.environ, "LD_LIBRARY_PATH": os.pathsep.join(folders)}
    if arguments in (["--help"], ["-h"]):
        done = subprocess.run([program, "--help"], env=environment)
        print(HELP, end="")
        sys.exit(done.returncode)
    os.execve(program, ["tandem", *arguments], environment)


def is_running() -> bool:
    """True when this process is `python -m tandem` or the command `tandem`; known while the package is imported."""
    arguments: list[str] = getattr(sys, "argv", None) or [""]  # a host that embeds Python may have none
    if arguments[0] != "-m":  # which it is until the module to run was found
        return os.path.basename(arguments[0]) == "tandem"
    module = sys.orig_argv[-len(arguments)]  # what stands before the arguments, also of `python -mtandem`
    return re.fullmatch(r"(-\w*m)?tandem(\.__main__)?", module) is not None


def answer_without_executorch(problem: str) -> NoReturn:
    """`disable` works, help and `doctor` tell what is missing; every other command fails with the one line."""
    command, *arguments = sys.argv[1:] or ["--help"]
    if command == "disable":
        main()
        sys.exit(0)
    if command in ("--help", "-h"):
        print(f"usage: tandem COMMAND [ARGUMENTS]\n\n  doctor                        tell what is missing\n{HELP}")
        print(f"Of these only doctor and disable work here: {problem}")
        sys.exit(0)
    if command == "doctor" and arguments in ([], ["--json"]):
        if arguments:
            found = {"found": False, "version": None, "path": None, "use": None}
            finding = {**found, "mend": _libraries.MEND, "reason": problem}
            print(json.dumps({"executorch": finding, "usable": False}, indent=2))
        else:
            print(f"ExecuTorch    not usable\n              to mend: {_libraries.MEND}")
        fail(f"doctor: {problem}", status=1)
    fail(problem, status=1)


def main() -> None:
    command, *arguments = sys.argv[1:] or ["--help"]
    if command == "run" and is_python_program(arguments):
        run_python(arguments)
    elif command in ("enable", "disable"):
        if arguments in (["--help"], ["-h"]):
            print(f"usage: tandem {command}\n{HELP}", end="")
            return
        if arguments:
            fail(f"{command} takes no argument, found {arguments[0]!r}")
        change_hook(command)
    else:
        run_command([command, *arguments])


if __name__ == "__main__":
    main()
