"""The arrows between the folders, and what the built libraries let out.

Arrows keep the core free of its users: a vendor or an adapter can be read, replaced and compiled knowing the
public headers alone. Run as a script it checks the sources; pytest checks the built libraries too.
"""

import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
BUILD = pathlib.Path(os.environ.get("TANDEM_BUILD", ROOT / "build/release"))

INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]', re.MULTILINE)
COMMENT_OR_TEXT = re.compile(r'//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"', re.DOTALL)

# folder: the project's own headers that its sources may include
ALLOWED = {
    "include": r"tandem/(tandem|vendor)\.h",
    "src": r"tandem/(tandem|vendor)\.h|src/.*",
    "vendors": r"tandem/vendor\.h|vendors/(cuda/cuda|search/search)\.h|<own folder>/.*",
    "adapters": r"tandem/(tandem|vendor|program)\.h|<own folder>/.*",
    "cli": r"tandem/(tandem|vendor|program)\.h|<own folder>/.*",
    "python": r"tandem/(tandem|vendor|program)\.h|<own folder>/.*",
    "examples": r"tandem/(tandem|vendor|program)\.h",
}


def sources(*folders):
    for folder in folders:
        for path in sorted((ROOT / folder).rglob("*")):
            if path.suffix in (".c", ".h", ".cc", ".cpp", ".hpp"):
                yield path


def own_header(path, kind, name):
    """The project's header that this include names, relative to the root ("tandem/..." for public ones)."""
    if name.startswith("tandem/"):
        return name
    if kind == '"':
        return os.path.relpath(path.parent / name, ROOT)
    in_tree = [folder for folder in ("src", "include") if (ROOT / folder / name).exists()]
    return os.path.join(in_tree[0], name) if in_tree else None


def arrows_against(folder):
    found = []
    for path in sources(folder):
        own_folder = path.parent.relative_to(ROOT)
        allowed = re.compile(ALLOWED[folder].replace("<own folder>", re.escape(str(own_folder))))
        for kind, name in INCLUDE.findall(path.read_text()):
            header = own_header(path, kind, name)
            if header is not None and not allowed.fullmatch(header):
                found.append(f"{path.relative_to(ROOT)} includes {header}")
    return found


def users_of(word, *folders):
    """The sources whose code (not comments or text) has an identifier that matches `word`."""
    pattern = re.compile(rf"\b(?:{word})\b")
    return {
        str(path.relative_to(ROOT))
        for path in sources(*folders)
        if pattern.search(COMMENT_OR_TEXT.sub(" ", re.sub(r"^\s*#\s*include.*$", "", path.read_text(), flags=re.M)))
    }


def includers_of(header, *folders):
    return {
        str(path.relative_to(ROOT))
        for path in sources(*folders)
        if any(name == header for _, name in INCLUDE.findall(path.read_text()))
    }


def test_includes_point_one_way():
    found = [line for folder in ALLOWED for line in arrows_against(folder)]
    assert not found, "\n".join(found)


def test_only_thread_c_knows_pthread():
    assert users_of(r"pthread_\w+", "src", "vendors") <= {"src/thread.c"}
    assert includers_of("pthread.h", "src", "vendors") <= {"src/thread.c"}
    assert includers_of("threads.h", "src", "vendors") == set()


def test_only_vendor_c_opens_libraries():
    assert users_of(r"dlopen|dlmopen", "src", "vendors") <= {"src/vendor.c"}


def test_each_public_header_compiles_alone():
    with tempfile.TemporaryDirectory() as folder:
        for compiler, suffix, standard in (("cc", ".c", "c11"), ("c++", ".cc", "c++17")):
            source = pathlib.Path(folder, "alone" + suffix)
            for header in ("vendor", "tandem", "program"):
                source.write_text(f"#include <tandem/{header}.h>\nint main(void) {{ return 0; }}\n")
                subprocess.run(
                    [compiler, f"-std={standard}", "-Wall", "-Wextra", "-Wpedantic", "-Werror", "-fsyntax-only",
                     f"-I{ROOT / 'include'}", str(source)],
                    check=True,
                )


def test_vendor_table_stays_small():
    """At most 12 entries, with the ABI version and the size first."""
    text = re.sub(r"/\*.*?\*/", "", (ROOT / "include/tandem/vendor.h").read_text(), flags=re.DOTALL)
    body = re.search(r"struct tandem_vendor \{(.*?)\n\};", text, re.DOTALL).group(1)
    fields = [field.strip() for field in body.split(";") if field.strip()]
    assert fields[:2] == ["uint32_t abi_version", "uint32_t struct_size"]
    assert len(re.findall(r"\(\*\w+\)\(", body)) <= 12


def exported(library):
    out = subprocess.run(["nm", "-D", "--defined-only", str(library)], check=True, capture_output=True, text=True)
    return {line.split()[-1].split("@")[0] for line in out.stdout.splitlines()}


def declared(header):
    text = (ROOT / "include/tandem" / header).read_text()
    return set(re.findall(r"TANDEM_API\s[^;]*?\b(tandem_\w+)\(", text))


def check_library(name, header):
    library = BUILD / name
    symbols = exported(library)
    assert {symbol for symbol in symbols if not symbol.startswith("tandem_")} == set()
    assert symbols == declared(header), "exported and declared in " + header
    flags = subprocess.run(["readelf", "-d", str(library)], check=True, capture_output=True, text=True).stdout
    assert re.search(r"\(FLAGS_1\).*\bNODELETE\b", flags)


def test_libtandem_exports_what_tandem_h_declares_and_stays_loaded():
    check_library("libtandem.so", "tandem.h")


def test_libtandem_executorch_exports_what_program_h_declares_and_stays_loaded():
    check_library("libtandem_executorch.so", "program.h")


def test_the_checks_see_a_wrong_arrow(tmp_path, monkeypatch):
    """A check that cannot fail is none: the same checks over a tree with one defect of each kind."""
    shutil.copytree(ROOT / "include", tmp_path / "include")
    for folder, line in (
        ("src", '#include "../vendors/openvino/openvino.h"\nvoid *p = dlopen;\n'),
        ("vendors/some", "#include <base.h>\nint i = pthread_self();\n"),
        ("adapters/some", '#include "../../src/base.h"\n'),
        ("cli", "#include <base.h>\n"),
    ):
        (tmp_path / folder).mkdir(parents=True)
        (tmp_path / folder / "wrong.c").write_text(line)
    (tmp_path / "src/base.h").write_text("")
    monkeypatch.setitem(globals(), "ROOT", tmp_path)
    for folder in ("src", "vendors", "adapters", "cli"):
        assert len(arrows_against(folder)) == 1, folder
    assert users_of(r"pthread_\w+", "src", "vendors") == {"vendors/some/wrong.c"}
    assert users_of("dlopen", "src", "vendors") == {"src/wrong.c"}


if __name__ == "__main__":
    for check in (
        test_includes_point_one_way,
        test_only_thread_c_knows_pthread,
        test_only_vendor_c_opens_libraries,
        test_each_public_header_compiles_alone,
        test_vendor_table_stays_small,
    ):
        check()
    sys.exit(0)
