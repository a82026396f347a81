"""What two arms of a real policy cost on the stock runtime, with tandem and without: `./dev bench policy`.

Takes the first of LeRobot's policies that ExecuTorch's exporter takes (policies.py builds and exports it, once; the
program stays in the cache folder), and loads it twice in fresh processes, the configurations taking turns:

  tandem          the drop-in, from the program's path; each load runs
  stock           the stock delegate, from bytes; each load runs
  stock, path     the stock delegate, from the path; it only loads, since with OpenVINO 2026 it frees what OpenVINO
                  goes on reading. Whether it survives a run is tried in a process of its own and told

Memory is the growth of Anonymous + Swap and of Pss in /proc/self/smaps_rollup, after the load and after its first run.
"""

import argparse
import hashlib
import importlib.metadata
import json
import os
import pathlib
import platform
import shutil
import signal
import statistics
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "tests/python"), str(ROOT / "bench")]

MIB = 1 << 20
POLICIES = ("smolvla", "act")
# configuration: tandem, source, runs
CONFIGURATIONS = {
    "tandem": (True, "path", True),
    "stock": (False, "bytes", True),
    "stock, path": (False, "path", False),
}
SURVIVAL = (False, "path", True)


def say(*words):
    print("policy:", *words, file=sys.stderr, flush=True)


# ---------------------------------------------------------------- the program


def hash_of_all():
    """Of what goes into a program: its makers, the packages, the processor, to which OpenVINO binds it."""
    makers = ["bench/policies.py", "tests/python/models.py", "requirements/policy.txt"]
    flags = next((line for line in open("/proc/cpuinfo") if line.startswith(("flags", "Features"))), "")
    versions = [importlib.metadata.version(name) for name in ("torch", "executorch", "openvino", "numpy")]
    content = repr([[(ROOT / maker).read_bytes() for maker in makers], flags, versions])
    return hashlib.sha256(content.encode()).hexdigest()[:12]


def export(name, packages, seconds):
    """The program's path, or None after telling where its export failed."""
    cache = pathlib.Path(os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache") / "tandem"
    folder = cache / f"policy-{name}-{hash_of_all()}"
    if not (folder / "ready").exists():
        say(f"exporting {name}, minutes")
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        path = os.pathsep.join([packages, *filter(None, [os.environ.get("PYTHONPATH")])])
        command = [sys.executable, ROOT / "bench/policies.py", folder, name]
        with open(folder / "log", "w") as log:
            done = subprocess.run(
                command, env=dict(os.environ, PYTHONPATH=path), stdout=log, stderr=log, timeout=seconds
            )
        if done.returncode:
            lines = (folder / "log").read_text().strip().splitlines() or ["no output"]
            say(f"{name} was not exported (status {done.returncode}): {lines[-1]}; all of it in {folder / 'log'}")
            return None
        os.sync()  # dirty pages of a file would count as the process's own
        (folder / "ready").touch()
    return folder / f"{name}.pte"


# ---------------------------------------------------------------- one process


def read_memory():
    fields = dict(line.split()[:2] for line in open("/proc/self/smaps_rollup") if line.endswith("kB\n"))
    return {
        "private": 1024 * (int(fields["Anonymous:"]) + int(fields["Swap:"])),
        "pss": 1024 * (int(fields["Pss:"]) + int(fields["SwapPss:"])),
    }


def measure(path, tandem, source, runs, loads):
    """In a fresh process: what each load costs, and what it answers."""
    import host
    import numpy as np

    there = host.tandem() if tandem else host.stock()
    with np.load(path.with_suffix(".npz")) as case:
        inputs = [case[f"in{i}"] for i in range(len(case.files) - 1)]
        eager = case["out0"]
    program = path.read_bytes() if source == "bytes" else path
    kept, answers, rows = [], [], []

    def grow(before):
        host.collect()
        after = read_memory()
        return {key: after[key] - before[key] for key in after}

    for _ in range(loads):
        host.collect()
        before = read_memory()
        begin = time.monotonic()
        kept.append(there.load(program))
        row = {"load_seconds": time.monotonic() - begin, "loaded": grow(before)}
        if runs:
            begin = time.monotonic()
            answers.append(kept[-1](*inputs)[0])
            row |= {"run_seconds": time.monotonic() - begin, "ran": grow(before)}
        rows.append(row)
    result = {"loads": rows}
    if runs:
        answers += [load(*inputs)[0] for load in kept]
        result["equal"] = all(answer.tobytes() == answers[0].tobytes() for answer in answers)
        result["finite"] = bool(np.isfinite(answers[0]).all())
        result["difference"] = float(np.abs(answers[0] - eager).max())
        result["eager_spread"] = float(eager.std())
        result["answer"] = hashlib.sha256(answers[0].tobytes()).hexdigest()
    if tandem:
        stats = there.tandem.stats()
        result["engines"], result["builds"] = stats.engines, stats.builds
        result["digest_seconds"], result["build_seconds"] = stats.digest_seconds, stats.build_seconds
    return result


def measure_in_child(path, loads, tandem, source, runs):
    """The result, or how the process ended."""
    command = [sys.executable, __file__, "--measure", json.dumps([str(path), tandem, source, runs, loads])]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    if done.returncode < 0:
        return {"ended": signal.Signals(-done.returncode).name}
    if done.returncode:
        return {"ended": f"status {done.returncode}: {(done.stderr.strip().splitlines() or ['no output'])[-1]}"}
    return json.loads(done.stdout.splitlines()[-1])


# ---------------------------------------------------------------- all of them


def spread(values):
    values = sorted(values)
    return {"median": statistics.median(values), "min": values[0], "max": values[-1]}


def show(name, results):
    def cell(values, scale, digits):
        low, middle, high = (f"{values[key] / scale:.{digits}f}" for key in ("min", "median", "max"))
        return f"{middle} ({low} .. {high})"

    print(f"{'':<14}{'load':>5}{'private, loaded':>28}{'private, has run':>28}{'Pss, has run':>28}{'load, s':>22}")
    for configuration, rounds in results.items():
        for number in range(len(rounds[0]["loads"])):
            rows = [result["loads"][number] for result in rounds]
            cells = [cell(spread([row["loaded"]["private"] for row in rows]), MIB, 1)]
            for kind in ("private", "pss"):
                ran = [row["ran"][kind] for row in rows if "ran" in row]
                cells.append(cell(spread(ran), MIB, 1) if ran else "-")
            cells.append(cell(spread([row["load_seconds"] for row in rows]), 1, 2))
            print(f"{configuration:<14}{number + 1:>5}{cells[0]:>28}{cells[1]:>28}{cells[2]:>28}{cells[3]:>22}")


def check(name, results):
    """What has to hold in every round; the first that does not is told."""
    for result in results["tandem"]:
        if result["engines"] != 1 or result["builds"] != 1:
            return f"tandem has {result['engines']} engines after {result['builds']} builds, expected one"
    for configuration in ("tandem", "stock"):
        for result in results[configuration]:
            if not result["equal"]:
                return f"{configuration}: the loads of one process answer differently"
            if not result["finite"] or result["difference"] > 0.1 * result["eager_spread"]:
                return f"{configuration}: {result['difference']} from what PyTorch answers ({result['eager_spread']})"
    return None


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--policy", choices=POLICIES, help="this one alone")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--loads", type=int, default=2)
    parser.add_argument("--export-seconds", type=int, default=1800, help="bound of an export")
    parser.add_argument("--output", type=pathlib.Path, default=ROOT / "build/bench/policy.json")
    parser.add_argument("--measure", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure:
        path, *rest = json.loads(options.measure)
        print(json.dumps(measure(pathlib.Path(path), *rest)))
        return
    packages, openvino = (os.environ.get(name) for name in ("TANDEM_POLICY_PACKAGES", "TANDEM_OPENVINO_LIBRARY"))
    if not packages or not openvino:
        sys.exit("policy: TANDEM_POLICY_PACKAGES or TANDEM_OPENVINO_LIBRARY is not set; ./dev bench policy sets them")
    os.environ["OPENVINO_LIB_PATH"] = openvino
    path = None
    for name in [options.policy] if options.policy else POLICIES:
        if path := export(name, packages, options.export_seconds):
            break
    if not path:
        sys.exit("policy: no policy was exported")
    about = json.loads(path.with_suffix(".json").read_text())
    machine = {
        "processors": len(os.sched_getaffinity(0)), "kernel": platform.release(), "load": os.getloadavg()[0],
        "openvino": pathlib.Path(openvino).name,
    }  # fmt: skip
    results = {configuration: [] for configuration in CONFIGURATIONS}
    for number in range(options.rounds):
        names = list(CONFIGURATIONS)
        for configuration in names[number % len(names) :] + names[: number % len(names)]:
            say(f"round {number + 1} of {options.rounds}: {configuration}")
            result = measure_in_child(path, options.loads, *CONFIGURATIONS[configuration])
            if "ended" in result:
                sys.exit(f"policy: {configuration}: the process ended with {result['ended']}")
            results[configuration].append(result)
    survival = measure_in_child(path, 1, *SURVIVAL)
    wrong = check(name, results)
    document = {
        "machine": machine,
        "policy": about,
        "results": results,
        "stock_run_from_path": survival,
        "wrong": wrong,
    }
    options.output.parent.mkdir(parents=True, exist_ok=True)
    options.output.write_text(json.dumps(document, indent=1) + "\n")
    millions = about["parameters"] / 1e6
    size = f"program of {about['pte_bytes'] / MIB:.0f} MiB"
    print(f"{name}: {millions:.1f} M parameters, {', '.join(about['dtypes'])}, {size}")
    print(f"MiB and seconds that each load adds: median (extremes) of {options.rounds} rounds\n")
    show(name, results)
    first = results["tandem"][0]
    same = {result["answer"] for configuration in ("tandem", "stock") for result in results[configuration]}
    print(f"\nanswers of tandem and stock: {'equal bit for bit' if len(same) == 1 else f'{len(same)} different ones'}")
    print(f"largest difference from PyTorch: {first['difference']:.2g} at a spread of {first['eager_spread']:.2g}")
    print(f"the stock delegate, run from a path: {survival.get('ended', 'survives')}")
    print(f"{options.output}; the machine's load was {machine['load']:.1f} at the start")
    if wrong:
        sys.exit(f"policy: {wrong}")


if __name__ == "__main__":
    main()
