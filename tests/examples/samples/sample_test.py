"""A sample in one language: it prints what it prints in the others, and its exit status tells. Skipped where a GPU is asked for and there is none.

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
        "protected, they stay on the device as a whole",
        "another model has come, and they stay",
        "there is less memory, and they stay",
        "none of them was loaded again",
        "the device never held more than its budget",
        "then they are layers like the others",
    ],
    "reserve_and_guest": [
        "the model streams",
        "it has reserved what it streams with",
        "a guest that wants some of that is refused",
        "a guest that fits has all its layers on the device",
        "it has gone, and holds nothing",
        "nothing is reserved",
        "kept resident, the model gives nothing to a guest",
        "it holds what it has held",
        "then it gives a part of it",
        "the device never held more than its budget",
    ],
}


def run(*rest):
    environment = {name: value for name, value in os.environ.items() if name not in ("STAGEHAND_LOG", "STAGEHAND_TRACE")}
    done = subprocess.run([*program, *rest], capture_output=True, text=True, env=environment)
    if done.returncode == 77:
        print(done.stdout, end="")
        sys.exit(77)
    if rest and rest[-1] == device and device.startswith(("cuda", "hip")) and re.search("SH_ERROR_(BACKEND_UNAVAILABLE|NOT_FOUND)", done.stderr):
        print("skipped:", done.stderr.strip())
        sys.exit(77)
    return done


done = run(device)
assert (done.returncode, done.stdout.splitlines(), done.stderr) == (0, PRINTS[name], ""), (done.returncode, done.stdout, done.stderr)
# A simulation has no contents, so the bytes are wrong there.
done = run("sim")
assert done.returncode == 1 and done.stderr.startswith(f"{name}: ") and "these are other bytes" in done.stderr, (done.stdout, done.stderr)
for rest, text in ((("nobody",), "SH_ERROR_NOT_FOUND"), (("host", "more"), "usage")):
    done = run(*rest)
    assert done.returncode == 1 and done.stdout == "" and text in done.stderr, (done.stdout, done.stderr)
print("as it should be")
