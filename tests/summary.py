"""Says what a run of the tests came to, from Meson's logs: what was skipped and why, and, last, how many single tests passed,
failed and were skipped. A GoogleTest program counts as the tests in it.

    summary.py BUILD/meson-logs
"""
import json
import pathlib
import sys
import xml.etree.ElementTree as xml

# Suites that need what this library does not have yet are not listed; these are all that there are.
SUITES = ["unit", "abi", "headers", "conformance", "loader", "stress", "bindings", "examples", "cli", "install", "tidy"]


def suite_of(name):
    """Meson's full suite name is `project:suite`."""
    return name.split(":")[-1]


def main():
    logs = pathlib.Path(sys.argv[1])
    runs = [json.loads(line) for line in (logs / "testlog.json").read_text().splitlines() if line.strip()]
    ran = {suite_of(part) for run in runs for part in run["suite"]}
    passed = failed = skipped = 0
    for suite in xml.parse(logs / "testlog.junit.xml").getroot().iter("testsuite"):
        for case in suite.iter("testcase"):
            if case.find("failure") is not None or case.find("error") is not None:
                failed += 1
            elif case.find("skipped") is not None or case.get("status") == "notrun" or case.get("result") == "skipped":
                skipped += 1
            else:
                passed += 1
    # A program that died before it wrote its results has no cases: it failed all the same.
    bad = [run for run in runs if run["result"] not in ("OK", "SKIP", "EXPECTEDFAIL")]
    failed = max(failed, len(bad))

    print()
    for run in runs:
        if run["result"] == "SKIP":
            lines = [line for line in run.get("stdout", "").splitlines() if line.strip()]
            print(f"skipped {run['name']}: {lines[-1] if lines else 'it does not say why'}")
    for run in bad:
        print(f"{run['result'].lower()}: {run['name']}")
    missing = [suite for suite in SUITES if suite not in ran]
    if missing:
        print(f"not run here: {', '.join(missing)}")
    print(f"{passed} passed, {failed} failed, {skipped} skipped")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
