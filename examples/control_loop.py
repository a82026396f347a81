"""Two arms, one policy: two threads run one program 50 times a second each, on one shared engine.

    python control_loop.py small.pte
    python control_loop.py small.pte --seconds 10 --option num_threads=1 --option cpu_pinning=false

Prints for each arm how far the time between two starts was off the period, and what a run took, in milliseconds;
then tandem's statistics. A cycle whose start has passed by more than a period is missed, not made up for.

Exit status: 0 done, 1 the program failed to load or run, 2 called wrongly.
"""

import argparse
import concurrent.futures
import math
import sys
import threading
import time

import numpy as np
import tandem


def make_inputs(method: tandem.Method, seed: int) -> list[np.ndarray]:
    """An observation of the right shapes; a robot would read its cameras and joints here."""
    random = np.random.default_rng(seed)
    infos = [method.metadata.input_tensor_meta(index) for index in range(method.metadata.num_inputs())]
    return [random.uniform(0, 1, info.sizes()).astype(info.numpy_dtype()) for info in infos]


def drive(
    method: tandem.Method, inputs: list[np.ndarray], rate: float, seconds: float, gate: threading.Barrier
) -> np.ndarray:
    """Runs the policy at `rate` Hz; float64[cycles, 2]: how late each cycle started and what its run took, seconds."""
    cycles = []
    gate.wait()
    begin = time.monotonic()
    tick = 0
    while tick / rate < seconds:
        due = begin + tick / rate
        time.sleep(max(0.0, due - time.monotonic()))
        start = time.monotonic()
        method.execute(inputs)  # without the interpreter lock: the other arm runs at the same time
        end = time.monotonic()
        cycles.append((start - due, end - start))
        tick = max(tick + 1, int((end - begin) * rate))
    return np.array(cycles)


def describe(arm: str, cycles: np.ndarray, ticks: int) -> str:
    lateness, durations = cycles.T
    errors = abs(np.diff(lateness, append=lateness[-1]))
    figures = [1e3 * float(figure) for values in (errors, durations) for figure in np.percentile(values, [50, 99, 100])]
    return f"{arm:<6} {len(cycles):>6} {ticks - len(cycles):>6}" + "".join(f"{figure:>9.2f}" for figure in figures)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument("program", metavar="PROGRAM.pte")
    parser.add_argument("--seconds", metavar="N", type=float, default=5.0, help="(default 5)")
    parser.add_argument("--rate", metavar="HZ", type=float, default=50.0, help="of each arm (default 50)")
    parser.add_argument("--option", metavar="KEY=VALUE", action="append", default=[], help="of tandem, for both loads")
    parser.add_argument("--data", metavar="FILE.ptd", action="append", default=[], help="weights outside the program")
    arguments = parser.parse_args()
    if not (arguments.seconds > 0 and arguments.rate > 0):
        parser.error("--seconds and --rate are numbers above 0")
    if not all("=" in option for option in arguments.option):
        parser.error("--option takes KEY=VALUE")
    try:
        options = tandem.options(dict(option.split("=", 1) for option in arguments.option))
    except tandem.BadOptionError as error:
        parser.error(str(error))
    arms = ("left", "right")
    gate = threading.Barrier(len(arms))
    try:
        with options:
            program = tandem.Runtime.get().load_program(arguments.program, data_path=arguments.data)
            methods = [program.load_method("forward") for _ in arms]  # the second takes the first one's engine
        inputs = [make_inputs(method, seed) for seed, method in enumerate(methods)]
        for method, values in zip(methods, inputs, strict=True):
            method.execute(values)  # the first run is slower than the others
        with concurrent.futures.ThreadPoolExecutor(len(arms)) as pool:
            runs = [
                pool.submit(drive, method, values, arguments.rate, arguments.seconds, gate)
                for method, values in zip(methods, inputs, strict=True)
            ]
            cycles = [run.result() for run in runs]
    except tandem.Error as error:
        print(f"control_loop.py: {error}", file=sys.stderr)
        return 1
    print("              ", "period error [ms]".center(27), "run [ms]".center(27))
    print(f"{'arm':<6} {'cycles':>6} {'missed':>6}" + f"{'median':>9}{'p99':>9}{'max':>9}" * 2)
    for arm, each in zip(arms, cycles, strict=True):
        print(describe(arm, each, math.ceil(arguments.seconds * arguments.rate)))
    print(tandem.stats())
    return 0


if __name__ == "__main__":
    sys.exit(main())
