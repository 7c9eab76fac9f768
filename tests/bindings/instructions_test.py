"""The owners of stagehand.hpp cost as much as the C interface. The test counts the instructions of the same acquires
and releases in both by callgrind, which counts the same in every run. The test is skipped without valgrind.

    instructions_test.py PROGRAM
"""

import re
import shutil
import subprocess
import sys

PAIRS, MOST = 20_000, 1.02
valgrind = shutil.which("valgrind")
if not valgrind:
    print("skipped: there is no valgrind to count instructions with")
    sys.exit(77)


def instructions(language):
    """Returns the instructions of one acquire and release."""
    command = [
        valgrind,
        "--tool=callgrind",
        f"--toggle-collect=pairs_in_{language}",
        "--callgrind-out-file=/dev/null",
        sys.argv[1],
        language,
        str(PAIRS),
    ]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0 and re.search(
        "unrecognised instruction|Function redirection|Fatal error at startup", done.stderr
    ):
        print("skipped: this valgrind cannot run here:", done.stderr.strip().splitlines()[-1])
        sys.exit(77)
    assert done.returncode == 0 and done.stdout == language + "\n", (done.stdout, done.stderr)
    return int(re.search(r"Collected : (\d+)", done.stderr).group(1)) / PAIRS


c, cpp = instructions("c"), instructions("cpp")
print(f"an acquire and a release: {c:.1f} instructions in C, {cpp:.1f} in C++, {cpp / c:.4f} times as many")
sys.exit(cpp > MOST * c or c < 20)
