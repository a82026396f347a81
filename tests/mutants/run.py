"""Breaks tandem on purpose, one fault at a time, and tells which test sees it.

Each *.patch here is one broken variant: lines of "Key: value", then a diff against the tree. "Caught-by" names the
tests that must see it, "PROGRAM" or "PROGRAM TEST" (a cmocka test of it), comma between several; one that fails is
enough. A tree of its own, in build/mutants, is built once and has to pass, or nothing would be proven; then each patch
is applied, what changed is built, the patch is taken back, and the programs run.

A program that crashes, gives up or does not end in time has failed in the test that it was in.
"""

import argparse
import concurrent.futures
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
import xml.sax.saxutils

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent
WORK = ROOT / "build/mutants"
TREE, BUILD = WORK / "tree", WORK / "build"
COPIED = ["CMakeLists.txt", "cmake", "include", "src", "vendors", "cli", "fuzz", "tests"]
RUNS_AT_ONCE = 3
RUN_LIMIT = 120  # seconds, for one program; an unbroken one takes a few


def say(text):
    print(text, flush=True)


class Fault(Exception):
    """The harness itself cannot go on."""


def files_of_tree():
    listed = subprocess.run(["git", "-C", ROOT, "ls-files", "-z", "--cached", "--others", "--exclude-standard", "--",
                             *COPIED], capture_output=True)
    if listed.returncode == 0 and listed.stdout:
        names = sorted({os.fsdecode(name) for name in listed.stdout.split(b"\0") if name})
        return [name for name in names if (ROOT / name).is_file()]
    found = []
    for top in COPIED:
        path = ROOT / top
        found += [path] if path.is_file() else (p for p in path.rglob("*") if p.is_file())
    return sorted(str(path.relative_to(ROOT)) for path in found)


def write_changed(path, data, mode):
    """Leaves a file alone that is right, so that ninja builds what changed and no more."""
    if not path.is_file() or path.read_bytes() != data:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    path.chmod(mode)


def copy_tree():
    names = set(files_of_tree())
    for name in names:
        write_changed(TREE / name, (ROOT / name).read_bytes(), (ROOT / name).stat().st_mode & 0o777)
    for path in TREE.rglob("*"):
        if path.is_file() and str(path.relative_to(TREE)) not in names:
            path.unlink()


def command(arguments, what):
    result = subprocess.run(list(map(str, arguments)), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if result.returncode != 0:
        raise Fault(f"{what} failed:\n{result.stdout[-4000:]}")


def build(targets, jobs):
    # The copy's own build: no ExecuTorch is needed for any of these programs, and none is looked for.
    if not (BUILD / "build.ninja").exists():
        command(["cmake", "-S", TREE, "-B", BUILD, "-G", "Ninja", "-DCMAKE_BUILD_TYPE=Debug", "-DTANDEM_TESTS=ON",
                 "-DCMAKE_C_FLAGS_DEBUG=-g1 -O1", "-DCMAKE_DISABLE_FIND_PACKAGE_executorch=ON",
                 "-DCMAKE_C_COMPILER_LAUNCHER=", "-DCMAKE_CXX_COMPILER_LAUNCHER="], "cmake")
    command(["cmake", "--build", BUILD, "-j", jobs, "--target", *targets], "the build of " + " ".join(targets))


class Mutant:
    def __init__(self, path):
        text = path.read_text()
        self.name, self.path = path.stem, path
        self.fields = dict(re.findall(r"^([A-Z][a-z-]+): (.*)$", text.split("\n--- ")[0], re.M))
        if not self.fields.get("Fault") or not self.fields.get("Caught-by"):
            raise Fault(f"{path.name} has no 'Fault:' or no 'Caught-by:' line")
        self.files = re.findall(r"^\+\+\+ b/(\S+)", text, re.M)
        self.tests = [tuple((entry.split() + [None])[:2]) for entry in self.fields["Caught-by"].split(",")]

    def programs(self):
        return list(dict.fromkeys(program for program, _ in self.tests))

    def apply(self):
        result = subprocess.run(["patch", "-p1", "--batch", "--no-backup-if-mismatch", "-d", TREE, "-i", self.path],
                                stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        return result.returncode == 0, result.stdout

    def undo(self):
        for name in self.files:
            for left in (TREE / (name + ".orig"), TREE / (name + ".rej")):
                left.unlink(missing_ok=True)
            if (ROOT / name).is_file():
                write_changed(TREE / name, (ROOT / name).read_bytes(), (ROOT / name).stat().st_mode & 0o777)


def find_program(name):
    for path in sorted(BUILD.rglob(name)):
        if path.is_file() and os.access(path, os.X_OK):
            return path
    raise Fault(f"{name} was not built")


class Result:
    """What one run of a program came to: failed tests, and how it ended."""

    def __init__(self):
        self.failed, self.ran, self.code, self.reason = [], [], None, ""


def run_program(name, wanted=()):
    """Ends the program early when one of the tests in `wanted` has failed: a broken one may go on for minutes."""
    result = Result()
    process = subprocess.Popen([find_program(name)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                               errors="replace", cwd=BUILD, start_new_session=True)
    timer = threading.Timer(RUN_LIMIT, lambda: os.killpg(process.pid, signal.SIGKILL))
    timer.start()
    began, current, tail = time.monotonic(), None, []
    try:
        for line in process.stdout:
            tail = (tail + [line.rstrip()])[-30:]
            match = re.match(r"\[\s*(RUN|OK|FAILED|ERROR|SKIPPED)\s*\] (\w+)\s*$", line)
            if not match:
                continue
            kind, test = match.groups()
            if kind == "RUN":
                current = test
                result.ran.append(test)
            elif current == test:
                current = None
                if kind in ("FAILED", "ERROR"):
                    result.failed.append(test)
                    if test in wanted:
                        break
        else:
            process.wait()
    finally:
        ended = time.monotonic() - began >= RUN_LIMIT
        timer.cancel()
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        process.stdout.close()
    result.code = process.returncode
    if ended:
        result.reason = f"did not end within {RUN_LIMIT} s"
    elif result.code < 0 and not result.failed:
        result.reason = f"was ended by {signal.Signals(-result.code).name}"
    if current and result.code not in (0, 77):  # it crashed, hung, or gave up in the middle
        result.failed.append(current)
    result.tail = "\n".join(tail)
    return result


def make_programs(mutant, jobs):
    """Copies of the broken programs, beside the right ones: what those find near themselves the copies find too."""
    try:
        applied, output = mutant.apply()
        if not applied:
            raise Fault(f"{mutant.path.name} does not apply to the tree:\n{output}")
        build(mutant.programs(), jobs)
        for program in mutant.programs():
            source = find_program(program)
            shutil.copy2(source, source.with_name(f"{program}.{mutant.name}"))
    finally:
        mutant.undo()


def try_mutant(mutant):
    """The text that tells who caught it, None if nobody did."""
    for program in mutant.programs():
        wanted = {test for name, test in mutant.tests if name == program and test}
        result = run_program(f"{program}.{mutant.name}", wanted)
        if wanted:
            hits = [test for test in result.failed if test in wanted]
        else:
            hits = result.failed or (["exit status %d" % result.code] if result.code not in (0, 77) else [])
        if hits:
            return f"{program} {hits[0]}" + (f" ({result.reason})" if result.reason else "")
    return None


def check_unbroken(mutants):
    for program in dict.fromkeys(program for mutant in mutants for program in mutant.programs()):
        result = run_program(program)
        if result.code == 77 or result.code != 0 or result.failed:
            raise Fault(f"{program} of the unbroken tree ends with {result.code}, expected 0:\n{result.tail}")
        for mutant in mutants:
            for name, test in mutant.tests:
                if name == program and test and test not in result.ran:
                    raise Fault(f"{mutant.path.name}: {program} has no test {test}")


def write_report(path, outcomes):
    lines = ['<?xml version="1.0"?>', '<testsuite name="mutants" tests="%d">' % len(outcomes)]
    for name, caught, problem in outcomes:
        inner = "" if caught else "<failure message=%s/>" % xml.sax.saxutils.quoteattr(problem)
        lines.append('<testcase classname="mutants" name="%s">%s</testcase>' % (name, inner))
    path.write_text("\n".join(lines + ["</testsuite>", ""]))


def main():
    parser = argparse.ArgumentParser(prog="./dev mutants", description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help="the mutants to try (all)")
    parser.add_argument("--jobs", default=os.environ.get("TANDEM_JOBS") or str(os.cpu_count() or 1))
    parser.add_argument("--report", type=pathlib.Path, help="a JUnit file to write")
    arguments = parser.parse_args()
    outcomes = []
    try:
        mutants = [Mutant(path) for path in sorted(HERE.glob("*.patch"))]
        unknown = set(arguments.names) - {mutant.name for mutant in mutants}
        if unknown or not mutants:
            raise Fault(f"no mutant is named {', '.join(sorted(unknown)) or 'anything'} in {HERE}")
        mutants = [mutant for mutant in mutants if not arguments.names or mutant.name in arguments.names]
        copy_tree()
        build(list(dict.fromkeys(program for mutant in mutants for program in mutant.programs())), arguments.jobs)
        check_unbroken(mutants)
        problems = {}
        for mutant in mutants:
            try:
                make_programs(mutant, arguments.jobs)
            except Fault as fault:
                problems[mutant.name] = str(fault)
        # What a fault costs is mostly waits that end in vain, so several run at once.
        with concurrent.futures.ThreadPoolExecutor(RUNS_AT_ONCE) as runs:
            caught = {mutant.name: runs.submit(try_mutant, mutant) for mutant in mutants if mutant.name not in problems}
        for mutant in mutants:
            name = mutant.name
            hit = caught[name].result() if name in caught else None
            problem = problems.get(name, f"none of these failed: {mutant.fields['Caught-by']}")
            say(f"{name} ({mutant.fields['Fault']}): " + (f"caught by {hit}" if hit else f"MISSED: {problem}"))
            outcomes.append((name, hit, problem))
    except Fault as fault:
        say(f"mutants: {fault}")
        return 1
    finally:
        if arguments.report:
            write_report(arguments.report, outcomes)
    count = sum(1 for outcome in outcomes if outcome[1])
    say(f"{count} caught, {len(outcomes) - count} missed")
    return 0 if count == len(outcomes) else 1


if __name__ == "__main__":
    sys.exit(main())
