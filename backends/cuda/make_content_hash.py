"""Compiles content_hash.cl to PTX, and writes the PTX into content_hash_ptx.h, which is part of the source.

make_content_hash.py [--check]. With --check nothing is written, and the exit code is 1 if the header does not belong to
the source, and 77 if there is no clang-14: other versions write other PTX.
"""

import pathlib
import shutil
import subprocess
import sys

FOLDER = pathlib.Path(__file__).resolve().parent
COMPILER = "clang-14"
OPTIONS = "-x cl -cl-std=CL1.2 -target nvptx64-nvidia-cuda -nogpulib -O3 -S -o -".split()
# The oldest GPUs that the program runs on. The driver translates the PTX for newer ones.
for option in ("-target-cpu", "sm_50", "-target-feature", "+ptx60"):
    OPTIONS += ["-Xclang", option]


def header():
    ptx = subprocess.run(
        [COMPILER, *OPTIONS, "content_hash.cl"], cwd=FOLDER, check=True, capture_output=True, text=True
    ).stdout
    lines = [line.rstrip() for line in ptx.splitlines() if line.strip() and not line.lstrip().startswith("//")]
    text = "\n".join(line.expandtabs(4) for line in lines)
    return (
        "// Made by make_content_hash.py from content_hash.cl.\n#pragma once\n\n"
        f'constexpr char kContentHashProgram[] = R"(\n{text}\n)";\n'
    )


def main():
    if not shutil.which(COMPILER):
        print(f"there is no {COMPILER}")
        return 77
    path = FOLDER / "content_hash_ptx.h"
    if "--check" not in sys.argv:
        path.write_text(header(), encoding="utf-8")
        return 0
    if path.read_text(encoding="utf-8") == header():
        return 0
    print(f"{path.name} does not belong to content_hash.cl: run {FOLDER.name}/make_content_hash.py")
    return 1


if __name__ == "__main__":
    sys.exit(main())
