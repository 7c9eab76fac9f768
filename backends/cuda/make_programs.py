"""Compiles the programs for GPUs to PTX: NAME.cl into NAME.ptx, which is part of the source.

make_programs.py [--check]. With --check nothing is written, and the exit code is 1 if a program does not belong to its
source, and 77 if there is no clang-14: other versions write other PTX.
"""

import pathlib
import re
import shutil
import subprocess
import sys

FOLDER = pathlib.Path(__file__).resolve().parent
COMPILER = "clang-14"
OPTIONS = "-x cl -cl-std=CL1.2 -target nvptx64-nvidia-cuda -nogpulib -O3 -S -o -".split()
# The oldest GPUs that the program runs on. The driver translates the PTX for newer ones.
for option in ("-target-cpu", "sm_50", "-target-feature", "+ptx60"):
    OPTIONS += ["-Xclang", option]


PROGRAMS = ("content_hash", "pack", "unpack", "unpack_tiles")


# The threads of a group, so that the driver knows how many registers a thread may have. clang has no word for it here.
THREADS = {"sh_pack_f32": 256, "sh_pack_": 512, "sh_unpack_tiles_": 1024}


def with_threads(ptx):
    def bounded(entry):
        threads = next((count for name, count in THREADS.items() if entry[1].startswith(name)), None)
        return entry[0] if threads is None else f"{entry[0]}\n.maxntid {threads}, 1, 1"

    return re.sub(r"\.entry (\w+)\([^)]*\)", bounded, ptx)


def program(name):
    ptx = subprocess.run(
        [COMPILER, *OPTIONS, f"{name}.cl"], cwd=FOLDER, check=True, capture_output=True, text=True
    ).stdout
    ptx = with_threads(ptx)
    lines = [line.rstrip() for line in ptx.splitlines() if line.strip() and not line.lstrip().startswith("//")]
    return "".join(line.expandtabs(4) + "\n" for line in lines)


def main():
    if not shutil.which(COMPILER):
        print(f"there is no {COMPILER}")
        return 77
    wrong = 0
    for name in PROGRAMS:
        path = FOLDER / f"{name}.ptx"
        if "--check" not in sys.argv:
            path.write_text(program(name), encoding="utf-8")
        elif path.read_text(encoding="utf-8") != program(name):
            print(f"{path.name} does not belong to {name}.cl: run {FOLDER.name}/make_programs.py")
            wrong = 1
    return wrong


if __name__ == "__main__":
    sys.exit(main())
