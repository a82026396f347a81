"""Programs for tests and benchmarks, made once by models.py.

They lie in the cache folder under a hash of all that goes into them: the exporter, the packages, the processor.
"""

import fcntl
import hashlib
import importlib.metadata
import os
import pathlib
import shutil
import subprocess
import sys

HERE = pathlib.Path(__file__).parent


def export(names=(), packages=""):
    """The folder with those models, all without names; `packages`: the site-packages whose OpenVINO makes them."""
    cache = pathlib.Path(os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache") / "tandem"
    flags = next((line for line in open("/proc/cpuinfo") if line.startswith(("flags", "Features"))), "")
    found = importlib.metadata.distributions(**({"path": [packages]} if packages else {}))
    openvino = next(each.version for each in found if each.name == "openvino")
    versions = [importlib.metadata.version(name) for name in ("torch", "executorch", "numpy")]
    content = repr([(HERE / "models.py").read_bytes(), flags, openvino, versions, names])
    folder = cache / f"programs-{openvino}-{hashlib.sha256(content.encode()).hexdigest()[:12]}"
    cache.mkdir(parents=True, exist_ok=True)
    with open(f"{folder}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / "ready").exists():
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir()
            environment = dict(os.environ, PYTHONPATH=packages)
            done = subprocess.run(
                [sys.executable, HERE / "models.py", folder, *names],
                env=environment, capture_output=True, text=True, timeout=400,
            )
            assert done.returncode == 0, done.stderr[-4000:]
            os.sync()  # dirty pages of a file would count as the process's own
            (folder / "ready").touch()
    return folder
