"""Compares tandem with the stock delegate and with private engines: `./dev bench [--rounds N] [--seconds S]`.

Three questions, for a 157 MB MLP and for the policy of `tandem demo`, each measurement in a process of its own
(loads.c), the configurations taking turns in every round so that a drift of the machine meets all alike:

  alone   a load that runs alone, against the stock delegate: at most 1.02 of its time per run
  pair    two loads run at once that share one engine, against the fastest of two private engines with the defaults,
          with half of the processors each, and with pinning off: at least 0.95 of their throughput. Private engines
          with both options at once are told apart, without a limit: such an engine gives up half of the processors
          also when it runs alone
  load    the second load: at most the digest's time and 2 ms

The machine's own noise is what two measurements of the stock delegate in one round differ by. A ratio is formed
within a round; the median over the rounds and the spread (first to third quartile, and the extremes) are told.
"""

import argparse
import json
import os
import pathlib
import platform
import statistics
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests/python"))
import programs  # noqa: E402

PLUGIN = os.environ.get("TANDEM_EXECUTORCH_LIBRARY") or str(ROOT / "build/release/libtandem_executorch.so")
FOLDER = ROOT / "build/bench"
LIMITS = {"alone": 1.02, "pair": 0.95, "load": 0.002}


def say(*words):
    print("bench:", *words, file=sys.stderr, flush=True)


def build():
    FOLDER.mkdir(parents=True, exist_ok=True)
    program, source = FOLDER / "loads", ROOT / "bench/loads.c"
    compiler = [os.environ.get("CC", "cc"), "-std=gnu11", "-O2", f"-I{ROOT / 'include'}"]
    subprocess.run([*compiler, source, "-o", program, "-ldl", "-lpthread"], check=True)
    return program


def stock_library():
    import importlib.util

    folder = importlib.util.find_spec("executorch").submodule_search_locations[0]
    return f"{folder}/lib/libexecutorch_backend_openvino.so"


def policy(openvino):
    """The policy of `tandem demo`, kept: a payload belongs to the OpenVINO that made it."""
    path = FOLDER / f"policy-{pathlib.Path(openvino).name}.pte"
    if not path.exists():
        say("making the demo's policy")
        command = pathlib.Path(PLUGIN).parent / "tandem"
        part = path.with_suffix(".part")
        subprocess.run([command, "demo", "--keep", part, "--json"], check=True, stdout=subprocess.DEVNULL)
        part.rename(path)
    return path


class Bench:
    def __init__(self, program, seconds):
        self.program, self.seconds = program, seconds

    def measure(self, model, mode, *arguments):
        done = subprocess.run(
            [self.program, PLUGIN, model, mode, str(self.seconds), *arguments],
            capture_output=True,
            text=True,
            timeout=120 + 4 * self.seconds,
        )
        if done.returncode:
            sys.exit(f"bench: loads {mode} {' '.join(arguments)}: {done.stderr.strip() or done.returncode}")
        return json.loads(done.stdout)


def spread(values):
    values = sorted(values)
    quartiles = statistics.quantiles(values, n=4, method="inclusive") if len(values) > 1 else values * 3
    return {
        "median": statistics.median(values),
        "q1": quartiles[0],
        "q3": quartiles[2],
        "min": values[0],
        "max": values[-1],
    }


def turns(configurations, rounds, measure):
    """Results by configuration; each round takes all, beginning with another one."""
    names, results = list(configurations), {name: [] for name in configurations}
    for number in range(rounds):
        for name in names[number % len(names) :] + names[: number % len(names)]:
            results[name].append(measure(*configurations[name]))
    return results


def compare_alone(bench, model, rounds, stock):
    # From bytes, which the stock delegate does not free: what it maps it frees, and OpenVINO 2026 then crashes.
    theirs = ("lone", "--stock", stock, "--bytes")
    configurations = {"tandem": ("lone",), "stock": theirs, "stock again": theirs}
    found = turns(configurations, rounds, lambda *a: bench.measure(model, *a))
    times = {name: [each["median_s"] for each in results] for name, results in found.items()}
    middle = [(a + b) / 2 for a, b in zip(times["stock"], times["stock again"])]
    return {
        "tandem_ms": spread([1e3 * each for each in times["tandem"]]),
        "stock_ms": spread([1e3 * each for each in times["stock"] + times["stock again"]]),
        "ratio": spread([ours / theirs for ours, theirs in zip(times["tandem"], middle)]),
        "noise": spread([a / b for a, b in zip(times["stock"], times["stock again"])]),
    }


def compare_pair(bench, model, rounds):
    half = f"num_threads={max(1, len(os.sched_getaffinity(0)) // 2)}"
    private = "use_shared_engines=false"
    configurations = {
        "shared": ("pair",),
        "shared again": ("pair",),
        "private": ("pair", private),
        "private, half the threads": ("pair", private, half),
        "private, pinning off": ("pair", private, "cpu_pinning=false"),
        "private, half the threads, pinning off": ("pair", private, half, "cpu_pinning=false"),
    }
    found = turns(configurations, rounds, lambda *a: bench.measure(model, *a))
    rates = {name: [each["per_second"] for each in results] for name, results in found.items()}
    both = "private, half the threads, pinning off"
    limited = [name for name in rates if name.startswith("private") and name != both]
    best = max(limited, key=lambda name: statistics.median(rates[name]))
    middle = [(a + b) / 2 for a, b in zip(rates["shared"], rates["shared again"])]
    return {
        "per_second": {name: spread(values) for name, values in rates.items()},
        "fastest_private": best,
        "ratio": spread([ours / theirs for ours, theirs in zip(middle, rates[best])]),
        "ratio_to_both": spread([ours / theirs for ours, theirs in zip(middle, rates[both])]),
        "noise": spread([a / b for a, b in zip(rates["shared"], rates["shared again"])]),
    }


def compare_load(bench, model, rounds):
    loads = [bench.measure(model, "load") for _ in range(rounds)]
    seconds = [second for _, second in loads]
    if not all(second["shared"] for second in seconds):
        sys.exit("bench: a second load did not share")
    return {
        "first_ms": spread([1e3 * first["seconds"] for first, _ in loads]),
        "second_ms": spread([1e3 * second["seconds"] for second in seconds]),
        "digest_ms": spread([1e3 * second["digest_seconds"] for second in seconds]),
        "beyond_digest_ms": spread([1e3 * (second["seconds"] - second["digest_seconds"]) for second in seconds]),
    }


def row(name, values, unit="", digits=3):
    text = {key: f"{value:.{digits}f}" for key, value in values.items()}
    print(f"  {name:<44}{text['median']:>10} {unit:<4} {text['q1']} .. {text['q3']}  ({text['min']} .. {text['max']})")


def show(name, result):
    print(f"\n{name}{'':<{46 - len(name)}}    median      quartiles  (extremes)")
    alone, pair, load = result["alone"], result["pair"], result["load"]
    row("alone: tandem, a run", alone["tandem_ms"], "ms")
    row("alone: stock delegate, a run", alone["stock_ms"], "ms")
    row(f"alone: tandem / stock (limit {LIMITS['alone']})", alone["ratio"])
    row("  noise: stock / stock", alone["noise"])
    for label, values in pair["per_second"].items():
        row(f"pair: {label}", values, "/s", 1)
    row(f"pair: shared / fastest private (limit {LIMITS['pair']})", pair["ratio"])
    row("pair: shared / private with both options", pair["ratio_to_both"])
    row("  noise: shared / shared", pair["noise"])
    row("load: first", load["first_ms"], "ms")
    row("load: second", load["second_ms"], "ms")
    row("load: its digest", load["digest_ms"], "ms")
    row("load: beyond the digest (limit 2 ms)", load["beyond_digest_ms"], "ms")


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=11)
    parser.add_argument("--seconds", type=float, default=2.0, help="of each measurement")
    parser.add_argument("--model", choices=["mlp", "policy"], help="only this one")
    parser.add_argument("--output", type=pathlib.Path, default=FOLDER / "compare.json")
    options = parser.parse_args()
    openvino = os.environ.get("TANDEM_OPENVINO_LIBRARY")
    if not openvino:
        sys.exit("bench: TANDEM_OPENVINO_LIBRARY is not set; ./dev bench sets it")
    os.environ["OPENVINO_LIB_PATH"] = openvino
    bench = Bench(build(), options.seconds)
    makers = {"mlp": lambda: programs.export() / "big.pte", "policy": lambda: policy(openvino)}
    results = {
        "machine": {
            "processors": len(os.sched_getaffinity(0)),
            "kernel": platform.release(),
            "load": os.getloadavg()[0],
            "openvino": pathlib.Path(openvino).name,
        },
        "rounds": options.rounds,
        "seconds": options.seconds,
        "limits": LIMITS,
        "models": {},
    }
    for name in [options.model] if options.model else makers:
        model = makers[name]()
        result = results["models"][name] = {}
        for question, answer in [
            ("alone", lambda model=model: compare_alone(bench, model, options.rounds, stock_library())),
            ("pair", lambda model=model: compare_pair(bench, model, options.rounds)),
            ("load", lambda model=model: compare_load(bench, model, options.rounds)),
        ]:
            say(f"{name}: {question}, {options.rounds} rounds")
            result[question] = answer()
        result["kept"] = {
            "alone": result["alone"]["ratio"]["median"] <= LIMITS["alone"],
            "pair": result["pair"]["ratio"]["median"] >= LIMITS["pair"],
            "load": result["load"]["beyond_digest_ms"]["median"] <= 1e3 * LIMITS["load"],
        }
        show(name, result)
    options.output.parent.mkdir(parents=True, exist_ok=True)
    options.output.write_text(json.dumps(results, indent=1) + "\n")
    broken = [
        f"{name}: {limit}"
        for name, each in results["models"].items()
        for limit, kept in each["kept"].items()
        if not kept
    ]
    print(f"\n{options.output}; the machine's load was {results['machine']['load']:.1f} at the start")
    print("all limits kept" if not broken else "not kept: " + ", ".join(broken))
    sys.exit(bool(broken))


if __name__ == "__main__":
    main()
