"""Runs a sample in one language. Its output must be the same in all languages, and its exit status must be right. The
test is skipped if it needs a GPU and there is none.

sample_test.py [--device DEVICE] NAME PROGRAM...
"""

import os
import re
import subprocess
import sys

arguments = sys.argv[1:]
device = "host"
if arguments[0] == "--device":
    device, arguments = arguments[1], arguments[2:]
name, program = arguments[0], arguments[1:]

PRINTS = {
    "protect": [
        "the model streams",
        "the protected layers stay on the device as a whole",
        "they stay when another model comes",
        "they stay when there is less memory",
        "none of them was loaded again",
        "the device never held more than its budget",
        "without protection they are layers like the others",
    ],
    "reserve_and_guest": [
        "the model streams",
        "it has reserved the memory that it streams with",
        "a guest that needs a part of that memory is refused",
        "a guest that fits has all its layers on the device",
        "the guest has left and holds nothing",
        "nothing is reserved",
        "a model that is kept resident gives nothing to a guest",
        "it holds as much as before",
        "afterwards it gives up a part of it",
        "the device never held more than its budget",
    ],
}


def run(*rest):
    environment = {
        name: value for name, value in os.environ.items() if name not in ("STAGEHAND_LOG", "STAGEHAND_TRACE")
    }
    done = subprocess.run([*program, *rest], capture_output=True, text=True, env=environment)
    if done.returncode == 77:
        print(done.stdout, end="")
        sys.exit(77)
    if (
        rest
        and rest[-1] == device
        and device.startswith(("cuda", "hip"))
        and re.search("SH_ERROR_(BACKEND_UNAVAILABLE|NOT_FOUND)", done.stderr)
    ):
        print("skipped:", done.stderr.strip())
        sys.exit(77)
    return done


done = run(device)
assert (done.returncode, done.stdout.splitlines(), done.stderr) == (0, PRINTS[name], ""), (
    done.returncode,
    done.stdout,
    done.stderr,
)
# A simulation has no contents, so the bytes are wrong there.
done = run("sim")
assert done.returncode == 1 and done.stderr.startswith(f"{name}: ") and "its bytes are wrong" in done.stderr, (
    done.stdout,
    done.stderr,
)
for rest, text in ((("nobody",), "SH_ERROR_NOT_FOUND"), (("host", "more"), "usage")):
    done = run(*rest)
    assert done.returncode == 1 and done.stdout == "" and text in done.stderr, (done.stdout, done.stderr)
print("as it should be")
