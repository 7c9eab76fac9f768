"""Runs a sample in one language. Its output must be the same in all languages, and its exit status must be right. The
test is skipped if it needs a GPU and there is none.

sample_test.py [--device DEVICE] NAME PROGRAM...
"""

from sample import device, run, words

name, *program = words

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


done = run(program, device)
assert (done.returncode, done.stdout.splitlines(), done.stderr) == (0, PRINTS[name], ""), (
    done.returncode,
    done.stdout,
    done.stderr,
)
# A simulation has no contents, so the bytes are wrong there.
done = run(program, "sim")
assert done.returncode == 1 and done.stderr.startswith(f"{name}: ") and "its bytes are wrong" in done.stderr, (
    done.stdout,
    done.stderr,
)
for rest, text in ((("nobody",), "SH_ERROR_NOT_FOUND"), (("host", "more"), "usage")):
    done = run(program, *rest)
    assert done.returncode == 1 and done.stdout == "" and text in done.stderr, (done.stdout, done.stderr)
print("as it should be")
