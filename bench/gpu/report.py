"""Tables of what run.sh measured: report.py RESULTS.jsonl. Every figure names what it was measured on."""

import json
import sys

MIB = 1 << 20


def mib(value):
    return f"{value / MIB:.2f}"


def row(*cells):
    print("| " + " | ".join(str(cell) for cell in cells) + " |")


def head(*cells):
    row(*cells)
    row(*("---" for _ in cells))


def memory(d):
    print(
        f"{mib(d['weights_bytes'])} MiB of weights in {d['layers']} layers, scratch {mib(d['scratch_bytes'])} MiB, "
        f"input and output {d['io_bytes']} bytes\n"
    )
    head("engines", "scratch", "load 1 (MiB)", "load 2 (MiB)", "loads 2..8, mean (MiB)", "load 2 (s)", "left (MiB)")
    for mode in d["modes"]:
        costs = mode["load_bytes"]
        row(
            "shared" if mode["shared"] else "private",
            "shared" if mode["share_scratch"] else "own",
            mib(costs[0]),
            mib(costs[1]),
            mib(sum(costs[1:]) / len(costs[1:])),
            f"{mode['load_seconds'][1]:.4f}",
            mib(mode["left_bytes"]),
        )


def speed(d):
    head("comparison", "pairs", "median (ms)", "other (ms)", "median of ratios", "p10..p90 of ratios")
    for name, c in d["comparisons"].items():
        row(
            name,
            c["pairs"],
            f"{c['median_ms']:.4f}",
            f"{c['other_median_ms']:.4f}",
            f"{c['median_of_ratios']:.4f}",
            f"{c['ratio_p10']:.4f}..{c['ratio_p90']:.4f}",
        )


def streams(d):
    ratio = d["limits"]["two_shared_loads_over_two_private_engines"]["value"]
    print(
        f"two loads at once, {d['rounds']} rounds of {d['runs_of_each_load']} runs: shared "
        f"{d['shared_pair_ms_per_run']:.4f} ms a run of both, private {d['private_pair_ms_per_run']:.4f} ms; "
        f"ratio {ratio:.4f} ({d['ratio_p10']:.4f}..{d['ratio_p90']:.4f}); outputs bit-equal to private runs"
    )


def storm(d):
    head("beside a 200 Hz runner", "loads/s", "runs", "p50 (ms)", "p99 (ms)", "max (ms)")
    for phase in d["phases"]:
        row(
            phase["storm"],
            f"{phase['loads_per_s']:.1f}",
            phase["runs"],
            f"{phase['p50_ms']:.3f}",
            f"{phase['p99_ms']:.3f}",
            f"{phase['max_ms']:.3f}",
        )


def race(d):
    print(
        f"8 loads race for {mib(d['room_bytes'])} MiB, one engine has {mib(d['weights_bytes'])} MiB, "
        f"{d['rounds']} rounds. {d['first_failure']}"
    )


def refusals(d):
    for plan in d["plans"]:
        left = plan.get("left_by_98_failures_device_host_files")
        print(
            f"- {plan['plan']}: {plan['status']}: {plan['message']}"
            + (
                f" (98 failures left {left[0]:.0f} bytes on the device, {left[1]:.0f} on the host, {left[2]:.0f} files)"
                if left
                else ""
            )
        )


def other(d):
    known = {
        "part",
        "measurement",
        "limits",
        "good",
        "seconds",
        "cuda_driver",
        "devices",
        "tandem",
        "library",
        "library_path",
        "first_warning",
    }
    for key, value in d.items():
        if key not in known:
            print(f"- {key}: {value}")


def main():
    for line in open(sys.argv[1]):
        d = json.loads(line)
        print(f"\n## {d['part']}")
        if "memcheck" in d:
            print(f"{d['memcheck']}; tests: {d['tests']}")
            continue
        if "measurement" not in d:
            print(f"did not end well: status {d.get('status')}")
            continue
        kind = "stand-in engine" if "standin" in d["library_path"] else "real library"
        print(
            f"{kind}: {d['library']}; CUDA driver {d['cuda_driver']}, {d['devices']} GPUs, tandem {d['tandem']}, "
            f"{d['seconds']:.1f} s\n"
        )
        {"memory": memory, "speed": speed, "streams": streams, "storm": storm, "race": race, "refusals": refusals}.get(
            d["measurement"], other
        )(d)
        if d.get("first_warning"):
            print(f"\nfirst warning: {d['first_warning']}")
        limits = d.get("limits", {})
        if limits:
            print()
        for name, limit in limits.items():
            print(f"- {'good' if limit['good'] else 'BEYOND'}: {name} {limit['value']:.6g}, limit {limit['limit']:.6g}")


main()
