"""Sums up a run of ./dev test: the coverage of src/, then the one line that CI reads.

Reads the folder of reports: NAME.rc, the exit status of a stage; NAME-*.xml, its tests in junit's form;
coverage.json of gcovr. A stage that failed without a failed test counts as one failed test, too little coverage
as well, so that no failure can hide. Exit 1 when anything failed or nothing passed.
"""

import json
import pathlib
import sys
import xml.etree.ElementTree as tree

LINES_PERCENT, BRANCHES_PERCENT = 95, 85  # at least


def count(reports):
    total = dict(passed=0, failed=0, skipped=0)
    for status in reports.glob("*.rc"):
        failed = 0
        for report in reports.glob(status.stem + "-*.xml"):
            for case in tree.parse(report).iter("testcase"):
                if case.get("status") == "disabled":
                    continue
                kinds = {child.tag for child in case}
                kind = "failed" if kinds & {"failure", "error"} else "skipped" if "skipped" in kinds else "passed"
                total[kind] += 1
                failed += kind == "failed"
        total["failed"] += int(status.read_text()) != 0 and not failed
    return total


def main(reports):
    total = count(reports)
    if (reports / "coverage.json").exists():
        found = json.loads((reports / "coverage.json").read_text())
        print("lines: %.1f%% branches: %.1f%%" % (found["line_percent"], found["branch_percent"]))
        if found["line_percent"] < LINES_PERCENT or found["branch_percent"] < BRANCHES_PERCENT:
            print(f"too little: at least {LINES_PERCENT}% of lines and {BRANCHES_PERCENT}% of branches are asked for")
            total["failed"] += 1
    print("%(passed)d passed, %(failed)d failed, %(skipped)d skipped" % total)
    return total["failed"] > 0 or total["passed"] == 0


if __name__ == "__main__":
    sys.exit(main(pathlib.Path(sys.argv[1])))
