"""The wheel that `./dev wheel` or `./dev aarch64` has made, and what readelf tells of the files in it."""

import os
import pathlib
import platform
import re
import subprocess
import zipfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
MACHINE = os.environ.get("TANDEM_WHEEL_MACHINE", platform.machine())


def find_wheel():
    found = list((ROOT / "dist").glob(f"tandem_rt-*_{MACHINE}.whl"))
    assert len(found) == 1, f"dist has {len(found)} wheels for {MACHINE}, expected 1: make it by `./dev wheel`"
    return found[0]


def unpack(folder):
    """The wheel's files in that folder, with the modes that pip would give them; those that are ELF."""
    with zipfile.ZipFile(find_wheel()) as archive:
        for member in archive.infolist():
            path = pathlib.Path(archive.extract(member, folder))
            if path.is_file():
                path.chmod(member.external_attr >> 16 & 0o777 or 0o644)
    return [path for path in folder.rglob("*") if path.is_file() and path.read_bytes()[:4] == b"\x7fELF"]


def dynamic_entries(path, kind):
    """The values of NEEDED, RUNPATH, SONAME, ... of a file."""
    text = subprocess.run(["readelf", "-d", path], capture_output=True, text=True, check=True).stdout
    return re.findall(rf"\({kind}\)[^\[]*\[([^\]]*)\]", text)


def exported_symbols(path):
    """Names of the symbols that a file defines for others."""
    text = subprocess.run(["readelf", "-W", "--dyn-syms", path], capture_output=True, text=True, check=True).stdout
    columns = [line.split() for line in text.splitlines()]
    return {
        row[7].split("@")[0]
        for row in columns
        if len(row) >= 8 and row[4] in ("GLOBAL", "WEAK", "UNIQUE") and row[5] == "DEFAULT" and row[6] != "UND"
    }
