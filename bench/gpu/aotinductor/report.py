"""Tables of what run.sh measured, then the section for docs/measurements.md: report.py RESULTS.jsonl FOLDER

Markdown on stdout, pictures in FOLDER, where machine.txt is read.
"""

from __future__ import annotations

import json
import pathlib
import re
import sys
import textwrap
from typing import Any

MIB = 1 << 20


def row(*cells: object) -> None:
    print("| " + " | ".join(str(cell) for cell in cells) + " |")


def head(*cells: str) -> None:
    row(*cells)
    row(*("---" for _ in cells))


def mib(value: float) -> str:
    return f"{value / MIB:.1f}"


def numbers(values: list[float], scale: float = 1, digits: int = 1) -> str:
    return ", ".join(f"{value / scale:.{digits}f}" for value in values)


def memory(d: dict[str, Any]) -> None:
    """Each load's device memory, its tensors included, and seconds."""
    print(f"engine {mib(d['modes'][0]['engine_bytes'])} MiB, each load's inputs and outputs "
          f"{mib(d['modes'][0]['io_bytes'])} MiB of device memory\n")  # fmt: skip
    head("loads", "load (MiB)", "its first run (MiB)", "load (ms)", "of it the digest (ms)", "outputs equal",
         "left (MiB)")  # fmt: skip
    for mode in d["modes"]:
        row(("shared" if mode["shared"] else "private") + (", replayed" if mode["graph"] else ""),
            numbers(mode["load_bytes"], MIB), numbers(mode["run_bytes"], MIB), numbers(mode["load_seconds"], 1e-3, 2),
            numbers(mode["digest_seconds"], 1e-3, 2), mode["outputs_equal"], mib(mode["left_bytes"]))  # fmt: skip


def speed(d: dict[str, Any]) -> None:
    head("comparison", "rounds x runs", "median (ms)", "other (ms)", "median of ratios", "quartiles")
    for name, c in d["comparisons"].items():
        row(name.replace("_", " "), f"{c['rounds']} x {c['runs']}", f"{c['median_ms']:.3f}",
            f"{c['other_median_ms']:.3f}", f"{c['median_of_ratios']:.4f}",
            f"{c['ratio_p25']:.4f} .. {c['ratio_p75']:.4f}")  # fmt: skip


def peers(d: dict[str, Any]) -> None:
    at_once = "; ".join(f"{count} at once {ms:.3f} ms" for count, ms in d["ms_a_run_of_all"].items())
    print(f"{d['kind']}: loads {numbers(d['load_bytes'], MIB)} MiB, outputs equal: {d['outputs_equal']}; {at_once}")


def storm(d: dict[str, Any]) -> str:
    return (f"{d['cycles']} cycles of load, run, unload at {d['cycles_per_s']:.0f}/s: memory grew by "
            f"{mib(d['grown_bytes'])} MiB (highest {mib(d['highest_bytes'])}); {d['runs_beside']} runs beside, "
            f"median {d['beside_p50_ms']:.3f} ms, 99 % within {d['beside_p99_ms']:.3f} ms; "
            f"a build leaves {mib(d['left_bytes_a_build'])} MiB")  # fmt: skip


def race(d: dict[str, Any]) -> str:
    failed = d["limits"]["loads_that_failed"]["value"]
    return (f"8 loads at once, {d['rounds']} rounds, room for {mib(d['room_bytes'])} MiB, one engine has "
            f"{mib(d['engine_bytes'])}: {failed:.0f} failed {d.get('first_failure', '')}").rstrip()  # fmt: skip


def programs(d: dict[str, Any]) -> None:
    head("program", "good", "distance to eager PyTorch", "loads agree", "shared", "error")
    for name, p in d["programs"].items():
        row(name, p["good"], p.get("distance", ""), p.get("loads_agree", ""), p.get("shared", ""), p.get("error", ""))


def stock(d: dict[str, Any]) -> str:
    sides = []
    for mode in d["modes"]:
        more = [load + run for load, run in zip(mode["load_bytes"], mode["run_bytes"])]
        sides.append(f"{'shared' if mode['shared'] else 'an engine each'}: load 1 {mib(more[0])} MiB, "
                     f"{mode['load_seconds'][0] * 1e3:.0f} ms, loads 2 to {len(more)} "
                     f"{span([v / MIB for v in more[1:]], 0, 'MiB')}, "
                     f"{span([v * 1e3 for v in mode['load_seconds'][1:]], 1, 'ms')}")  # fmt: skip
    equal = all(mode["outputs_equal"] for mode in d["modes"]) and d["modes"][0]["outputs"] == d["modes"][1]["outputs"]
    return (f"the stock Python runtime, torch {d['torch']}, device memory of a load with its first run, time of the "
            f"load alone, {'; '.join(sides)}; load 2 beyond its inputs and outputs "
            f"{mib(d['second_shared_load_bytes'])} MiB (at most 4); outputs equal: {equal}")  # fmt: skip


def limits(d: dict[str, Any]) -> None:
    for name, limit in d.get("limits", {}).items():
        print(f"* {'within' if limit['good'] else 'BEYOND'}: {name.replace('_', ' ')} {limit['value']:.6g}, "
              f"limit {limit['limit']:.6g}")  # fmt: skip


def control_failed(documents: list[dict[str, Any]]) -> bool:
    return any(
        name.startswith("control") and not p["good"]
        for d in documents
        if d.get("measurement") == "programs"
        for name, p in d["programs"].items()
    )


# ---------------------------------------------------------------- pictures
# TensorRT on a Jetson before tandem: MiB of the first load and of each further one, as told.
REPLACED = (800, 120)
LOADED = {"transformer": "transformer, 768 MiB", "policy": "policy of SmolVLA's shape, bf16",
          "policy_torch": "the policy with libtorch", "policy_timed": "the policy, kernels timed",
          "partitioner": "transformer by CudaPartitioner"}  # fmt: skip


def draw(documents: list[dict[str, Any]], folder: pathlib.Path) -> None:
    """aotinductor-memory.svg: device memory over loads; aotinductor-latency.svg: a run over loads at once."""
    try:
        import matplotlib

        matplotlib.use("svg")
        from matplotlib import pyplot
    except ImportError:
        print("\nno matplotlib: no pictures")
        return
    matplotlib.rcParams["svg.hashsalt"] = "tandem"  # equal figures give equal files
    chosen: dict[str, dict[str, dict[str, Any]]] = {"memory": {}, "speed": {}}
    for d in documents:
        kind, name = d.get("measurement", ""), d.get("part", "").rpartition("_")[0]
        if kind in chosen and name in LOADED:
            chosen[kind][name] = d
    for kind, found in chosen.items():
        if not found:
            continue
        figure, row_of_axes = pyplot.subplots(
            1, len(found), figsize=(3.6 * len(found) + 0.6, 3.4), layout="constrained", squeeze=False
        )
        for axes, (name, d) in zip(row_of_axes[0], found.items()):
            axes.set_title(LOADED[name], fontsize=10)
            if kind == "memory":
                for mode in d["modes"]:
                    if not mode["graph"]:
                        sums = [0.0]
                        for load, run in zip(mode["load_bytes"], mode["run_bytes"]):
                            sums.append(sums[-1] + (load + run) / MIB)
                        label, color = ("tandem, shared", "C0") if mode["shared"] else ("an engine each", "C1")
                        axes.plot(range(1, len(sums)), sums[1:], marker="o", markersize=3, label=label, color=color)
                replaced = [REPLACED[0] + REPLACED[1] * further for further in range(len(sums) - 1)]
                axes.plot(range(1, len(sums)), replaced, "--", color="grey", label="TensorRT before, as told")
                axes.set(xlabel="loads", ylim=(0, None))
            else:
                pairs = [c for key, c in d["comparisons"].items() if key.startswith("shared_over_private")]
                counts = [c["loads_at_once"] for c in pairs]
                axes.plot(counts, [c["median_ms"] for c in pairs], marker="o", label="tandem, shared", color="C0")
                axes.plot(counts, [c["other_median_ms"] for c in pairs], marker="x", label="an engine each", color="C1")
                axes.set(xlabel="loads at once", xticks=counts, ylim=(0, None))
        row_of_axes[0][0].set_ylabel("device memory (MiB)" if kind == "memory" else "one run of every load (ms)")
        row_of_axes[0][0].legend(fontsize=8)
        figure.savefig(
            folder / f"aotinductor-{'memory' if kind == 'memory' else 'latency'}.svg", metadata={"Date": None}
        )
        pyplot.close(figure)


# ---------------------------------------------------------------- the section for docs/measurements.md
COMMANDS = """\
    bench/gpu/aotinductor/prepare.sh    # where the project is built
    bench/gpu/aotinductor/run.sh all    # on the machine with the GPUs: compiles, measures, draws
"""
REAL = """\
Nothing is a stand-in: engines that AOTInductor compiled on that machine, its driver, ExecuTorch's program in front.
Device memory is what the driver counts for the whole GPU, in steps of 2 MiB; a load counts with its inputs and outputs.

![Device memory by number of loads](pictures/aotinductor-memory.svg)
![Time of a run by loads at once](pictures/aotinductor-latency.svg)

Pictures: `bench/gpu/aotinductor/report.py RESULTS.jsonl docs/pictures`. Dashed is no measurement: what was told of
SmolVLA on a Jetson with TensorRT before tandem, 800 MiB for the first load and 120 MiB for each further one.
"""


def span(values: list[float], digits: int, unit: str) -> str:
    low, high = min(values), max(values)
    if round(low, digits) == round(high, digits):
        return f"{low:.{digits}f} {unit}"
    return f"{low:.{digits}f} .. {high:.{digits}f} {unit}"


def mode_of(d: dict[str, Any], shared: bool) -> dict[str, Any]:
    return next(mode for mode in d["modes"] if mode["shared"] == shared and not mode["graph"])


def print_section(documents: list[dict[str, Any]], machine: str) -> None:
    """What docs/measurements.md says of this run, ready to be copied."""
    parts = {d["part"]: d for d in documents if "part" in d}
    names = [name for name in LOADED if f"{name}_memory" in parts and "modes" in parts[f"{name}_memory"]]
    print("\n## AOTInductor on a GPU\n")
    print(COMMANDS)
    for line in machine.splitlines():
        print("    " + re.sub("^(Linux [0-9]+[.][0-9]+)[^ ]*", r"\1", line))
    print()
    print(REAL)
    if names:
        head("device memory and time of a load", *(LOADED[name] for name in names))
        memories = [parts[f"{name}_memory"] for name in names]
        modes = [(mode_of(d, True), mode_of(d, False)) for d in memories]
        row("engine", *(f"{mib(s['engine_bytes'])} MiB" for s, _ in modes))
        row("inputs and outputs of a load", *(f"{mib(s['io_bytes'])} MiB" for s, _ in modes))
        row("load 1", *(f"{mib(s['load_bytes'][0])} MiB, {s['load_seconds'][0] * 1e3:.0f} ms" for s, _ in modes))
        row("loads 2 to 8, shared",
            *(f"{span([v / MIB for v in s['load_bytes'][1:]], 0, 'MiB')}, "
              f"{span([v * 1e3 for v in s['load_seconds'][1:]], 1, 'ms')}" for s, _ in modes))  # fmt: skip
        row("of that the digest",
            *(span([v * 1e3 for v in s["digest_seconds"][1:]], 1, "ms") for s, _ in modes))  # fmt: skip
        for limit, label, scale, unit in (
            ("second_shared_load_bytes", "load 2 beyond its inputs and outputs, at most 4 MiB", MIB, "MiB"),
            ("second_shared_load_seconds_beyond_digest", "load 2 beyond the digest, at most 2 ms", 1e-3, "ms"),
        ):
            row(label, *(f"{d['limits'][limit]['value'] / scale:.2f} {unit}" for d in memories))
        row("first run of loads 2 to 8, shared",
            *(span([v / MIB for v in s["run_bytes"][1:]], 0, "MiB") for s, _ in modes))  # fmt: skip
        row("loads 2 to 8, an engine each",
            *(f"{span([v / MIB for v in p['load_bytes'][1:]], 0, 'MiB')}, "
              f"{span([v * 1e3 for v in p['load_seconds'][1:]], 1, 'ms')}" for _, p in modes))  # fmt: skip
        row("outputs of all equal bit for bit", *(s["outputs_equal"] and p["outputs_equal"] for s, p in modes))
        row("left when all are closed, shared", *(f"{mib(s['left_bytes'])} MiB" for s, _ in modes))
        print()
    speeds = {name: parts[f"{name}_speed"]["comparisons"] for name in LOADED
              if "comparisons" in parts.get(f"{name}_speed", {})}  # fmt: skip
    if speeds:
        head("run: left over right; ms, median of paired ratios (quartiles)", *(LOADED[name] for name in speeds))
        for key in dict.fromkeys(key for comparisons in speeds.values() for key in comparisons):
            cells = []
            for comparisons in speeds.values():
                c = comparisons.get(key)
                cells.append(
                    f"{c['median_ms']:.3f} over {c['other_median_ms']:.3f}: {c['median_of_ratios']:.3f} "
                    f"({c['ratio_p25']:.3f} .. {c['ratio_p75']:.3f})" if c else "-"
                )  # fmt: skip
            row(key.replace("_", " "), *cells)
        settings = (f"{LOADED[name]}: {c['rounds']} rounds of {c['runs']} runs"
                    for name, comparisons in speeds.items() for c in list(comparisons.values())[:1])  # fmt: skip
        text = (
            f"Of each ratio: {'; '.join(settings)}. The quartiles are of one process: from one to another a ratio "
            "moves by more. At most 1.01 is wanted of shared over private."
        )
        print(f"\n{textwrap.fill(text, 125)}\n")
    kinds = [d for d in documents if d.get("measurement") == "peers" and "load_bytes" in d]
    if kinds:
        counts = list(dict.fromkeys(count for d in kinds for count in d["ms_a_run_of_all"]))
        print(
            "Peers without tandem. Containers: one with weights of its own for each load, as CudaBackend makes them. "
            "Runners: one container\nwhose runners share its weights and wait for one another. Eager: load 1 is told "
            "without the weights, which were there before.\n"
        )
        head("peers, the transformer, same run", "load 1", "loads 2 to 4", *(f"{count} at once" for count in counts))
        for d in kinds:
            ms = d["ms_a_run_of_all"]
            row(d["kind"], f"{mib(d['load_bytes'][0])} MiB", span([v / MIB for v in d["load_bytes"][1:]], 0, "MiB"),
                *(f"{ms[count]:.3f} ms" if count in ms else "-" for count in counts))  # fmt: skip
        print()
    for d in documents:
        if d.get("measurement") in ("storm", "race") and "limits" in d:
            beyond = [name.replace("_", " ") for name, limit in d["limits"].items() if not limit["good"]]
            tell_item(TELL_IN_WORDS[d["measurement"]](d) + "; BEYOND its limit: " * bool(beyond) + ", ".join(beyond))
        elif d.get("measurement") == "stock" and "modes" in d:
            tell_item(f"{LOADED[d['part'].removesuffix('_stock')]}: {stock(d)}")
        elif d.get("measurement") == "programs":
            good = [name for name, p in d["programs"].items() if p["good"]]
            bad = [f"{name} ({p.get('error', 'wrong')})" for name, p in d["programs"].items() if not p["good"]]
            tell_item(f"{d['part']}: {len(good)} good{': ' * bool(good)}{', '.join(good)}; "
                      f"{len(bad)} not{': ' * bool(bad)}{', '.join(bad)}")  # fmt: skip
        elif d.get("measurement") == "devices" and "limits" in d:
            wrong = [name.replace("_", " ") for name, limit in d["limits"].items() if not limit["good"]]
            tell_item(f"{d['part']}, a load on one GPU and two on the other: " + (
                ", ".join(wrong) or "an engine for each GPU, the loads of one share it, outputs equal"))  # fmt: skip
        elif "memcheck" in d or "tests" in d:
            tell_item(f"{d['part']}: {d.get('memcheck', d.get('tests'))}")
        elif "measurement" not in d and not d.get("good", True):
            status = d.get("status")
            tell_item(f"{d['part']}: " + (f"NOT RUN, {status}" if isinstance(status, str) else f"status {status}"))
    if control_failed(documents):
        tell_item(CONTROL_FAILED)


def tell_item(text: str) -> None:
    print(textwrap.fill(f"* {text.rstrip('.')}.", 125, subsequent_indent="  ", break_long_words=False))


CONTROL_FAILED = (
    "The stock Python runtime did not run the control either, a program for XNNPACK without a GPU and without tandem: "
    "with that pair of executorch and torch its tensors have no device. What it cannot do with the programs above says "
    "nothing about them."
)
TELL = {"memory": memory, "speed": speed, "peers": peers, "programs": programs}
TELL_IN_WORDS = {"storm": storm, "race": race}


def main() -> None:
    lines = pathlib.Path(sys.argv[1]).read_text().splitlines()
    documents = [json.loads(line) for line in lines if line.startswith("{")]
    for d in documents:
        print(f"\n### {d.get('part')}: {'good' if d.get('good', True) else 'NOT GOOD'}\n")
        if d.get("measurement") in TELL:
            TELL[d["measurement"]](d)
            limits(d)
        elif d.get("measurement") in TELL_IN_WORDS and "limits" in d:
            print(TELL_IN_WORDS[d["measurement"]](d))
            limits(d)
        else:
            print(json.dumps({key: value for key, value in d.items() if key != "part"}))
            continue
        if control_failed([d]):
            print(f"\n{CONTROL_FAILED}")
    folder = pathlib.Path(sys.argv[2])
    machine = folder / "machine.txt"
    print_section(documents, machine.read_text() if machine.exists() else "(no machine.txt)")
    draw(documents, folder)


if __name__ == "__main__":
    main()
