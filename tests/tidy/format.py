"""C and C++ files must be laid out by .clang-format. Only version 14 is used, because other versions differ.

format.py ROOT
"""

import os
import shutil
import subprocess
import sys

GENERATED = {"bindings/python/src/cdef.h"}
# Copies that never change.
FROZEN = "tests/abi/frozen/"


def main():
    root = sys.argv[1]
    formatter = shutil.which("clang-format-14")
    if not formatter:
        print("there is no clang-format-14")
        return 77
    listed = subprocess.run(
        ["git", "-C", root, "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
        + ["*.c", "*.cpp", "*.h", "*.hpp"],
        capture_output=True,
        text=True,
    )
    if listed.returncode != 0:
        print("not a git checkout")
        return 77
    there = (name for name in listed.stdout.split("\0") if name and os.path.exists(os.path.join(root, name)))
    names = [name for name in there if name not in GENERATED and not name.startswith(FROZEN)]
    workers = [
        subprocess.Popen(
            [formatter, "--dry-run", "--Werror", *names[first :: os.cpu_count()]],
            cwd=root,
            stderr=subprocess.PIPE,
            text=True,
        )
        for first in range(os.cpu_count())
    ]
    lines = [line for worker in workers for line in worker.communicate()[1].splitlines()]
    print(*[line for line in lines if ": error: " in line], sep="\n")
    if any(worker.returncode for worker in workers):
        print("./dev fmt FILE... formats them")
        return 1
    print(f"{len(names)} files are formatted")
    return 0


if __name__ == "__main__":
    sys.exit(main())
