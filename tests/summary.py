"""Prints the result of a test run from Meson's logs: the skipped tests with the reasons, and at the end the numbers of
single tests that passed, failed and were skipped. Each test of a GoogleTest program, of pytest and of cargo counts.

    summary.py BUILD/meson-logs
"""

import json
import pathlib
import re
import sys
import xml.etree.ElementTree as xml

SUITES = [
    "unit",
    "abi",
    "headers",
    "conformance",
    "plugins",
    "stress",
    "bindings",
    "examples",
    "cli",
    "install",
    "tidy",
]


def single_tests(path):
    """{program: [passed, failed, skipped]} of the programs that told about the tests in them; {(program, reason):
    skipped}.
    """
    found, reasons = {}, {}
    for suite in xml.parse(path).getroot().iter("testsuite"):
        # A GoogleTest suite is called `project.NAME OF THE RUN.Suite`.
        program = suite.get("name", "").partition(".")[2].rpartition(".")[0]
        if not program:
            continue
        counts = found.setdefault(program, [0, 0, 0])
        for case in suite.iter("testcase"):
            if case.find("failure") is not None or case.find("error") is not None:
                counts[1] += 1
            elif case.find("skipped") is not None or case.get("status") == "notrun":
                counts[2] += 1
                mark = case.find("skipped")
                text = (mark.get("message") or mark.text or "") if mark is not None else "switched off"
                # GoogleTest prints the place before the reason.
                reason = (text.strip().splitlines() or ["it does not say why"])[-1]
                reasons[program, reason] = reasons.get((program, reason), 0) + 1
            else:
                counts[0] += 1
    return found, reasons


COLUMNS = {"passed": 0, "failed": 1, "error": 1, "errors": 1, "skipped": 2, "ignored": 2}
# "95 passed, 1 skipped in 8.76s" of pytest; "test result: ok. 6 passed; 0 failed; 1 ignored; ..." of cargo.
TOLD = re.compile(r"^(?:test result: .*|(?:\d+ \w+, )*\d+ \w+ in [\d.]+s.*)$", re.M)


def told_tests(output):
    """[passed, failed, skipped] of the tests that pytest or cargo tell of, None where it was neither; {reason:
    skipped}.
    """
    lines = TOLD.findall(output)
    counts = [0, 0, 0]
    for number, word in re.findall(r"(\d+) (\w+)", " ".join(lines)):
        if word in COLUMNS:
            counts[COLUMNS[word]] += int(number)
    skips = {}
    for number, reason in re.findall(r"^SKIPPED \[(\d+)\] \S+: (.*)$", output, re.M):
        skips[reason] = skips.get(reason, 0) + int(number)
    return (counts if lines else None), skips


def main():
    logs = pathlib.Path(sys.argv[1])
    if not (logs / "testlog.json").exists():
        print("no test was run")
        return 1
    runs = [json.loads(line) for line in (logs / "testlog.json").read_text().splitlines() if line.strip()]
    inside, reasons = single_tests(logs / "testlog.junit.xml")
    total, suites, failures = [0, 0, 0], set(), []
    skips = [
        f"skipped: {program.rpartition(' / ')[2]}: {count} of its tests: {reason}"
        for (program, reason), count in reasons.items()
    ]
    for run in runs:
        suite, _, name = run["name"].rpartition(" / ")
        suites.add(suite.rpartition(":")[2])
        good, skipped = run["result"] in ("OK", "EXPECTEDFAIL"), run["result"] == "SKIP"
        counts = inside.get(run["name"])
        if not counts and not skipped:
            counts, why = told_tests(run.get("stdout", ""))
            skips += [f"skipped: {name}: {count} of its tests: {reason}" for reason, count in why.items()]
        counts = counts or [int(good), 0, int(skipped)]
        if not good and not skipped:
            failures.append(f"failed: {name} ({run['result'].lower()})")
            counts[1] = max(counts[1], 1)  # a program that died has reported no failure
        if skipped:
            lines = [line for line in run.get("stdout", "").splitlines() if line.strip()]
            skips.append(f"skipped: {name}: {lines[-1] if lines else 'it does not say why'}")
        total = [a + b for a, b in zip(total, counts)]

    print("", *skips, *failures, sep="\n")
    if missing := [suite for suite in SUITES if suite not in suites]:
        print(f"suites not run: {', '.join(missing)}")
    print(f"{total[0]} passed, {total[1]} failed, {total[2]} skipped")
    return 1 if total[1] else 0


if __name__ == "__main__":
    sys.exit(main())
