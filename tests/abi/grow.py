"""Writes a copy of the public headers in which every struct of an engine has grown at its end: the headers of a later
version of the library. A program of today runs on a library that is built with them.

grow.py INCLUDE_DIR OUT_DIR STAMP
"""

import pathlib
import re
import sys

# The interface of backends has a version of its own, and callbacks get the library's structs.
NOT_OF_ENGINES = {"backend.h"}


def main():
    include, out, stamp = map(pathlib.Path, sys.argv[1:])
    (out / "stagehand").mkdir(parents=True, exist_ok=True)
    grown = 0
    for header in sorted((include / "stagehand").glob("*.h*")):
        text = header.read_text()
        if header.suffix == ".h" and header.name not in NOT_OF_ENGINES:
            text, count = re.subn(r"^\} (sh_\w+);$", r"    uint64_t grown[3];\n} \1;", text, flags=re.M)
            grown += count
        (out / "stagehand" / header.name).write_text(text)
    if not grown:
        sys.exit("no struct was found")
    stamp.write_text(f"/* {grown} structs have grown. */\n")


if __name__ == "__main__":
    main()
