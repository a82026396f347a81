"""Tables and pictures of what run.sh measured: report.py RESULTS.jsonl FOLDER. Markdown on stdout."""

from __future__ import annotations

import json
import pathlib
import sys
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


def storm(d: dict[str, Any]) -> None:
    print(f"{d['cycles']} cycles of load, run, unload at {d['cycles_per_s']:.0f}/s: memory grew by "
          f"{mib(d['grown_bytes'])} MiB (highest {mib(d['highest_bytes'])}); {d['runs_beside']} runs beside, "
          f"median {d['beside_p50_ms']:.3f} ms, 99 % within {d['beside_p99_ms']:.3f} ms; "
          f"a build leaves {mib(d['left_bytes_a_build'])} MiB")  # fmt: skip


def race(d: dict[str, Any]) -> None:
    failed = d["limits"]["loads_that_failed"]["value"]
    print(f"8 loads at once, {d['rounds']} rounds, room for {mib(d['room_bytes'])} MiB, one engine has "
          f"{mib(d['engine_bytes'])}: {failed:.0f} failed {d.get('first_failure', '')}")  # fmt: skip


def programs(d: dict[str, Any]) -> None:
    head("program", "good", "distance to eager PyTorch", "loads agree", "shared", "error")
    for name, p in d["programs"].items():
        row(name, p["good"], p.get("distance", ""), p.get("loads_agree", ""), p.get("shared", ""), p.get("error", ""))


def limits(d: dict[str, Any]) -> None:
    for name, limit in d.get("limits", {}).items():
        print(f"* {'within' if limit['good'] else 'BEYOND'}: {name.replace('_', ' ')} {limit['value']:.6g}, "
              f"limit {limit['limit']:.6g}")  # fmt: skip


def draw(documents: list[dict[str, Any]], folder: pathlib.Path) -> None:
    """memory_NAME.svg: device memory over loads; latency.svg: loads at once."""
    try:
        import matplotlib

        matplotlib.use("svg")
        from matplotlib import pyplot
    except ImportError:
        print("\nno matplotlib: no pictures")
        return
    for d in documents:
        name = d.get("part", "").removesuffix("_memory")
        if d.get("measurement") == "memory" and name in ("transformer", "policy", "partitioner"):
            figure, axes = pyplot.subplots(figsize=(6, 3.5), layout="constrained")
            for mode in d["modes"]:
                total, sums = 0.0, []
                for load, run in zip(mode["load_bytes"], mode["run_bytes"], strict=True):
                    total += load + run
                    sums.append(total / MIB)
                label = ("shared" if mode["shared"] else "private") + (", replayed" if mode["graph"] else "")
                axes.plot(range(1, len(sums) + 1), sums, marker="o", label=label)
            axes.set(xlabel="loads", ylabel="device memory (MiB)", title=name, ylim=(0, None))
            axes.legend()
            figure.savefig(folder / f"memory_{name}.svg")
        if d.get("measurement") == "speed" and "comparisons" in d:
            figure, axes = pyplot.subplots(figsize=(6, 3.5), layout="constrained")
            chosen = [c for key, c in d["comparisons"].items() if key.startswith("shared_over_private")]
            counts = [c["loads_at_once"] for c in chosen]
            axes.plot(counts, [c["median_ms"] for c in chosen], marker="o", label="shared")
            axes.plot(counts, [c["other_median_ms"] for c in chosen], marker="x", label="private")
            name = d["part"].removesuffix("_speed")
            axes.set(xlabel="loads at once", ylabel="a run of all (ms)", title=name, ylim=(0, None))
            axes.legend()
            figure.savefig(folder / f"latency_{name}.svg")


TELL = {"memory": memory, "speed": speed, "peers": peers, "storm": storm, "race": race, "programs": programs}


def main() -> None:
    lines = pathlib.Path(sys.argv[1]).read_text().splitlines()
    documents = [json.loads(line) for line in lines if line.startswith("{")]
    for d in documents:
        print(f"\n### {d.get('part')}: {'good' if d.get('good', True) else 'NOT GOOD'}\n")
        if d.get("measurement") in TELL:
            TELL[d["measurement"]](d)
            limits(d)
        else:
            print(json.dumps({key: value for key, value in d.items() if key != "part"}))
    draw(documents, pathlib.Path(sys.argv[2]))


if __name__ == "__main__":
    main()
