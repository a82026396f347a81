"""plan.c and plan.py write the same bytes: test_plan.py COMMAND_OF_STANDIN_PLAN..."""

import os
import subprocess
import sys
import tempfile

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import plan  # noqa: E402


def main():
    failed = 0
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([*sys.argv[1:], folder], check=True, timeout=60)
        written = sorted(os.listdir(folder))
        expected = sorted(name + ending for name in plan.SAMPLES for ending in (".payload", ".plan"))
        if written != expected:
            print("files: expected", expected, "found", written)
            failed = 1
        for name in plan.SAMPLES:
            bytes_of = {".plan": plan.sample(name), ".payload": plan.payload(plan.sample(name))}
            for ending, wanted in bytes_of.items():
                with open(os.path.join(folder, name + ending), "rb") as file:
                    found = file.read()
                if found != wanted:
                    at = next((i for i, (a, b) in enumerate(zip(found, wanted)) if a != b), min(len(found), len(wanted)))
                    print(f"{name}{ending}: differs at byte {at}; {len(found)} bytes from C, {len(wanted)} from Python")
                    failed = 1
    print("failed" if failed else f"{2 * len(plan.SAMPLES)} files are equal")
    return failed


if __name__ == "__main__":
    sys.exit(main())
