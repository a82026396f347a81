"""A virtual environment with the wheel and nothing that it does not ask for: no torch."""

import fcntl
import hashlib
import os
import pathlib
import shutil
import subprocess
import sys
import zipfile

import pytest
import wheels

LIMIT_S = 600


class Environment:
    def __init__(self, folder):
        self.folder = folder
        (self.packages,) = folder.glob("lib/python3*/site-packages")

    def run(self, *command, status=0, **keywords):
        """A command of the environment, with nothing of the surroundings that tandem or Python would read."""
        kept = {
            name: value for name, value in os.environ.items() if not name.startswith(("TANDEM_", "PYTHON", "OPENVINO"))
        }
        environment = {**kept, "PATH": f"{self.folder / 'bin'}:{os.environ['PATH']}", **keywords.pop("env", {})}
        command = [str(word) for word in (self.folder / "bin" / command[0], *command[1:])]
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=LIMIT_S, env=environment, check=False, **keywords
        )
        assert done.returncode == status, f"{command}: {done.returncode}\n{done.stdout}\n{done.stderr}"
        return done

    def files(self):
        return {path for path in self.folder.rglob("*") if "__pycache__" not in path.parts}


def cached_folder():
    """Named after what the wheel asks for, so that another version of it finds the same packages."""
    with zipfile.ZipFile(wheels.find_wheel()) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        lines = archive.read(name).decode().splitlines()
    asked = sorted(line for line in lines if line.startswith("Requires-Dist:"))
    digest = hashlib.sha256("\n".join([sys.version, *asked]).encode()).hexdigest()[:12]
    cache = pathlib.Path(os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache")
    return cache / "tandem" / f"venv-wheel-{digest}"


@pytest.fixture(scope="session")
def environment():
    """`pip install dist/tandem_rt-*.whl[openvino]`: from the registry once, then without: all of it is there."""
    folder = cached_folder()
    folder.parent.mkdir(parents=True, exist_ok=True)
    asked = f"{wheels.find_wheel()}[openvino]"
    with open(folder.with_suffix(".lock"), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / ".ready").exists():
            shutil.rmtree(folder, ignore_errors=True)
            subprocess.run([sys.executable, "-m", "venv", folder], check=True, timeout=LIMIT_S)
            Environment(folder).run("pip", "install", "--quiet", asked)
            (folder / ".ready").touch()
        made = Environment(folder)
        made.run("pip", "uninstall", "--quiet", "--yes", "tandem-rt")
        made.before = made.files()
        made.run("pip", "install", "--quiet", "--no-index", asked)
        yield made
