"""Compares the binary interface of the headers, as the compiler lays it out, with the committed snapshot.

snapshot.py LAYOUT_PROGRAM INCLUDE_DIR SNAPSHOT            fails on any difference
snapshot.py LAYOUT_PROGRAM INCLUDE_DIR SNAPSHOT --update   takes over additions; refuses what would break programs
... --update --break                                       takes over everything: before the first release of an ABI
"""

import pathlib
import struct
import subprocess
import sys

from interface import Interface

HEADER = (
    "# The binary interface on 64-bit systems. "
    "Written by `./dev gen`, which refuses what would break existing programs.\n"
)


def describe(program, include_dir):
    interface = Interface(include_dir)
    lines = subprocess.run([program], check=True, capture_output=True, text=True).stdout.splitlines()
    lines += [f"callback {name} {signature}" for name, signature in sorted(interface.callbacks.items())]
    lines += [f"function {name} {signature}" for name, signature in sorted(interface.functions.items())]
    return [line for line in lines if not line.startswith("constant SH_VERSION_")]


def entries(lines):
    return {tuple(line.split(" ", 2)[:2]): line for line in lines}


def holes(lines):
    """Returns padding that no field covers. Its contents would be undefined, and it could never become a field."""
    end, found, current, size = 0, [], None, 0
    for line in lines + ["struct end 0"]:
        kind, name, rest = line.split(" ", 2)
        if kind == "struct":
            if current and end != size:
                found.append(f"{current}: {size - end} bytes at the end")
            current, size, end = name, int(rest), 0
        elif kind == "field":
            offset, length = (int(word) for word in rest.split(" ")[:2])
            if offset != end:
                found.append(f"{name}: {offset - end} bytes before it")
            end = offset + length
    return found


def main():
    program, include_dir, path = sys.argv[1:4]
    if struct.calcsize("P") != 8:
        print("the snapshot is of 64-bit systems")
        return 77
    new = describe(program, include_dir)
    if gaps := holes(new):
        print("padding in structs:", *gaps, sep="\n    ")
        return 1
    file = pathlib.Path(path)
    old = [line for line in file.read_text().splitlines() if not line.startswith("#")] if file.exists() else []
    if old == new:
        print(f"{len(new)} lines, all as in the snapshot")
        return 0

    before, after = entries(old), entries(new)
    breaking, additions = [], []
    for key, line in before.items():
        now = after.get(key)
        if now is None:
            breaking.append(f"gone:    {line}")
        elif now != line:
            grown = key[0] == "struct" and int(now.split()[-1]) > int(line.split()[-1])
            (additions if grown else breaking).append(f"changed: {line}\n    to       {now}")
    additions += [f"new:     {line}" for key, line in after.items() if key not in before]
    if not breaking and not additions:
        additions.append("the order of the lines")

    if "--update" in sys.argv:
        if breaking and "--break" not in sys.argv:
            print("this would break existing programs:", *breaking, sep="\n    ")
            return 1
        file.write_text(HEADER + "\n".join(new) + "\n")
        print(f"snapshot written: {len(breaking)} breaking changes, {len(additions)} additions")
        return 0
    if breaking:
        print("breaks existing programs (a new soname, or a new function or struct instead):", *breaking, sep="\n    ")
    if additions:
        print("additions, to be taken over by `./dev gen`:", *additions, sep="\n    ")
    return 1


if __name__ == "__main__":
    sys.exit(main())
