"""Draws what each further load of a program costs: the stock delegates, and tandem with and without sharing.

Run as `python picture.py OUTPUT.svg PROGRAMS` with PROGRAMS a JSON list of {"backend", "openvino", "library", "path"}.
Every series is measured in a process of its own, through the stock runtime, so that nothing differs but
`import tandem`: a fork of this one, which has loaded torch and none of the libraries in question. The figures also go
to OUTPUT.json: private bytes after 0, 1, 2 ... loads.
"""

import concurrent.futures
import gc
import json
import multiprocessing
import os
import pathlib
import sys

import torch

LOADS = 6
MIB = 1 << 20


def private_bytes():
    """Anonymous + Swap: without the pages of files, which processes share."""
    gc.collect()
    lines = pathlib.Path("/proc/self/smaps_rollup").read_text().splitlines()
    fields = dict(line.split()[:2] for line in lines if line.endswith("kB"))
    return 1024 * (int(fields["Anonymous:"]) + int(fields["Swap:"]))


def measure(kind, path, run, environment):
    """Private bytes above those before the first load, after each load and its first run."""
    os.environ.update(environment)
    assert "libexecutorch" not in pathlib.Path("/proc/self/maps").read_text()
    if kind != "stock":
        import tandem

        tandem.require("OpenvinoBackend")
        tandem.set_option("use_shared_engines", kind == "shared")
    from executorch.runtime import Runtime

    runtime = Runtime.get()
    gc.freeze()  # what torch made: a collection of its million objects takes a second
    x = torch.zeros(1, 2560)
    loads, sizes = [], [private_bytes()]
    for _ in range(LOADS):
        program = runtime.load_program(path)
        method = program.load_method("forward")
        loads.append((program, method))
        if run:
            method.execute([x])
        sizes.append(private_bytes())
    if kind != "stock":
        stats = tandem.stats()
        assert stats.loads == LOADS and stats.engines == (1 if kind == "shared" else LOADS), stats
    return [size - sizes[0] for size in sizes]


def measure_all(programs):
    series = []
    fork = multiprocessing.get_context("fork")
    for program in programs:
        openvino = program["backend"] == "openvino"
        environment = {}
        if openvino:
            environment = {"TANDEM_OPENVINO_LIBRARY": program["library"], "OPENVINO_LIB_PATH": program["library"]}
        for kind in ("stock", "private", "shared") if openvino else ("stock",):
            # The stock delegate crashes when it runs this program with OpenVINO 2026.
            run = not (openvino and kind == "stock" and program["openvino"].startswith("2026"))
            with concurrent.futures.ProcessPoolExecutor(1, fork) as pool:
                sizes = pool.submit(measure, kind, program["path"], run, environment).result(timeout=300)
            name = f"OpenVINO {program['openvino']}" if openvino else "XNNPACK"
            series.append({"name": name, "kind": kind, "run": run, "bytes": sizes})
    return series


def draw(series, output):
    import matplotlib

    matplotlib.use("svg")
    matplotlib.rcParams |= {"svg.fonttype": "none", "svg.hashsalt": "tandem"}  # the same figures make the same file
    from matplotlib import pyplot

    names = list(dict.fromkeys(each["name"] for each in series))
    lines = {"stock": "-", "private": "--", "shared": ":"}
    labels = {"stock": "stock delegate", "private": "tandem, not shared", "shared": "tandem, shared"}
    figure, axes = pyplot.subplots(figsize=(7, 4.2), layout="constrained")
    for each in series:
        label = f"{each['name']}, {labels[each['kind']]}" + ("" if each["run"] else " (loaded, not run)")
        sizes = [size / MIB for size in each["bytes"]]
        axes.plot(range(len(sizes)), sizes, lines[each["kind"]] + "o", color=f"C{names.index(each['name'])}",
                  markersize=3, label=label)  # fmt: skip
    axes.set(xlabel="loads of one program, 150 MiB of float32 weights", ylabel="private memory [MiB]")
    axes.set_ylim(bottom=0)
    axes.grid(alpha=0.3)
    axes.legend(fontsize=8)
    figure.savefig(output, metadata={"Date": None})


def main():
    output, programs = pathlib.Path(sys.argv[1]), json.loads(sys.argv[2])
    series = measure_all(programs)
    output.with_suffix(".json").write_text(json.dumps(series, indent=1) + "\n")
    draw(series, output)


if __name__ == "__main__":
    main()
