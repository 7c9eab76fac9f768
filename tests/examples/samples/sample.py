"""A sample in one language, as the words behind a test's name: the device that it is for, and a run of it, which skips
the test where a GPU is asked for and there is none.

    [--device DEVICE] WORD...
"""

import os
import re
import subprocess
import sys

words = sys.argv[1:]
device = "host"
if words[0] == "--device":
    device, words = words[1], words[2:]


def run(program, *rest):
    environment = {
        name: value for name, value in os.environ.items() if name not in ("STAGEHAND_LOG", "STAGEHAND_TRACE")
    }
    done = subprocess.run([*program, *map(str, rest)], capture_output=True, text=True, env=environment)
    if done.returncode == 77:
        print(done.stdout, end="")
        sys.exit(77)
    on_gpu = rest and rest[-1] == device and device.startswith(("cuda", "hip"))
    if on_gpu and re.search("SH_ERROR_(BACKEND_UNAVAILABLE|NOT_FOUND)", done.stderr):
        print("skipped:", done.stderr.strip())
        sys.exit(77)
    return done
