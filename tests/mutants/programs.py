"""The test programs of the suites unit, conformance, stress and matrix, the likeliest to notice a mistake first."""

import json
import os
import resource
import signal
import subprocess
import time

SUITES = {"unit", "conformance", "stress", "matrix"}
# A test that says nothing for so long hangs. The longest takes a third of it on a quiet machine.
SILENT_SECONDS = 100
# Of private memory for each process: a mutant may take all that there is. Reserved addresses do not count.
MOST_BYTES = 4 << 30
# (beginning of the file's name, tests with filters), from the most special one on. All others follow in their order.
FIRST = [
    (
        "lib/core/spill/",
        [
            ("unit-core", "*Spill*:PackedBuffer*"),
            ("matrix-memory", "*/spill_*-*allocation*"),
            ("matrix-allocations", "*/spill_*allocation*"),
            ("stress-spill", ""),
        ],
    ),
    (
        "lib/core/occupancy/",
        [
            ("unit-core", "*Occupancy*"),
            ("matrix-memory", "*/pause_*-*allocation*"),
            ("matrix-allocations", "*/pause_*allocation*"),
            ("stress-occupancy", ""),
        ],
    ),
    ("lib/core/movement/capture", [("graphs-ordered", ""), ("graphs", "")]),
    (
        "lib/core/movement/",
        [
            ("unit-core", "*Dirty*:*Changes*:*Held*:*Written*:*Write*:*Streaming*"),
            ("matrix-weights", ""),
            ("thread-streams-stub", ""),
        ],
    ),
    ("lib/core/runtime/graphs", [("graphs-ordered", ""), ("graphs", ""), ("unit-core", "*Helped*:*Packed*")]),
    ("lib/core/runtime/capture", [("graphs-ordered", ""), ("graphs", "")]),
    (
        "lib/core/runtime/",
        [
            ("unit-core", "RefusedPlacement*:WaitingCalls*"),
            ("unit-core", ""),
            ("matrix-weights", ""),
            ("graphs-ordered", ""),
            ("matrix-memory", ""),
        ],
    ),
    ("lib/transfer/carrier/", [("unit-core", "*Help*"), ("unit-transfer", ""), ("matrix-loads", "")]),
    ("lib/transfer/unpack/", [("unit-transfer", ""), ("unit-core", "*Pack*:*Unpack*"), ("matrix-loads", "")]),
    ("lib/transfer/", [("unit-transfer", ""), ("matrix-weights", ""), ("stress-spill", "")]),
]
NEXT = [
    ("matrix-memory", ""),
    ("unit-core", ""),
    ("matrix-weights", ""),
    ("matrix-loads", ""),
    ("matrix-allocations", ""),
    ("stress-contents", ""),
    ("stress-fault", ""),
]


class Programs:
    def __init__(self, copy):
        self.copy = copy
        listed = subprocess.run(
            ["meson", "introspect", "--tests", copy.build], capture_output=True, text=True, check=True
        ).stdout
        self.tests = {
            test["name"]: test
            for test in json.loads(listed)
            if any(suite.rpartition(":")[2] in SUITES for suite in test["suite"]) and self.target_of(test)
        }
        depends = {name for test in self.tests.values() for name in self.prerequisites(test)}
        copy.dev_build(*sorted(depends), *sorted({self.target_of(test) for test in self.tests.values()}))

    def target_of(self, test):
        """The program's name in the build folder, or None if it is not built there."""
        path = os.path.relpath(test["cmd"][0], self.copy.build)
        return None if path.startswith("..") else path

    def prerequisites(self, test):
        """The plugins and libraries that the program loads: what it depends on besides its own file."""
        targets = {target.get("id"): target for target in self.targets()}
        for name in test.get("depends", []):
            for file in targets.get(name, {}).get("filename", []):
                yield os.path.relpath(file, self.copy.build)

    def targets(self):
        if not hasattr(self, "introspected"):
            told = subprocess.run(
                ["meson", "introspect", "--targets", self.copy.build], capture_output=True, text=True, check=True
            )
            self.introspected = json.loads(told.stdout)
        return self.introspected

    def order(self, file):
        chosen = next((tests for prefix, tests in FIRST if file.startswith(prefix)), []) + NEXT
        rest = sorted(self.tests, key=lambda name: (name.startswith("stress"), name))
        seen = set()
        for name, only in chosen + [(name, "") for name in rest]:
            if name in self.tests and (name, only) not in seen:
                seen.add((name, only))
                yield name, only

    def first_failure(self, file, seconds):
        """The test that fails first, or "" if none does in that time."""
        deadline = time.monotonic() + seconds
        for name, only in self.order(file):
            test = self.tests[name]
            if self.copy.ninja(self.target_of(test)).returncode != 0:
                return f"{name} cannot be linked"
            if time.monotonic() > deadline:
                break
            if failure := self.run(test, only, deadline):
                return f"{name} {failure}"
        return ""

    def run(self, test, only, deadline):
        """How the test failed, or "" if it did not, or not in time."""
        command = test["cmd"] + ([f"--gtest_filter={only}"] if only else [])
        if test.get("protocol") == "gtest":
            command.append("--gtest_fail_fast")
        log = self.copy.build_root / "test.log"
        with open(log, "wb") as output:
            process = subprocess.Popen(
                command,
                env=os.environ | test["env"],
                cwd=test.get("workdir") or self.copy.build,
                stdout=output,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                start_new_session=True,
            )
            resource.prlimit(process.pid, resource.RLIMIT_DATA, (MOST_BYTES, MOST_BYTES))
            said, at = 0, time.monotonic()
            while process.poll() is None:
                now = time.monotonic()
                if (size := log.stat().st_size) != said:
                    said, at = size, now
                if now > deadline or now > at + SILENT_SECONDS:
                    os.killpg(process.pid, signal.SIGKILL)
                    process.wait()
                    return f"hangs{self.last_test(log)}" if now > at + SILENT_SECONDS else ""
                time.sleep(0.05)
        if process.returncode in (0, 77):
            return ""
        return f"{'ends by signal' if process.returncode < 0 else 'fails'}{self.last_test(log)}"

    @staticmethod
    def last_test(log):
        """The single test that the program was in, or that failed."""
        lines = log.read_text(errors="replace").splitlines()
        failed = [line for line in lines if line.startswith("[  FAILED  ]")]
        begun = [line for line in lines if line.startswith("[ RUN      ]")]
        told = (failed or begun[-1:] or [""])[0]
        return f" in {told[12:].split(' (')[0].strip()}" if told else ""
