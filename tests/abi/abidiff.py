"""Compares the library's interface with that of an earlier version, by abidiff. Structs may grow at their ends, and
functions may come. Every other change breaks programs.

abidiff.py FROZEN_ABI LIBRARY
"""

import pathlib
import shutil
import subprocess
import sys
import tempfile

GROWTH = """[suppress_type]
  type_kind = struct
  has_data_member_inserted_at = end
"""


def main():
    frozen, library = sys.argv[1:]
    tool = shutil.which("abidiff")
    if not tool:
        print("there is no abidiff")
        return 77
    with tempfile.TemporaryDirectory() as folder:
        suppressions = pathlib.Path(folder, "growth")
        suppressions.write_text(GROWTH)
        told = subprocess.run(
            [tool, "--exported-interfaces-only", "--no-added-syms", "--suppressions", suppressions, frozen, library],
            capture_output=True,
            text=True,
        )
    print(told.stdout + told.stderr, end="")
    # Any bit of the exit status is a difference, or a failure to compare.
    if told.returncode:
        print("programs that were built with the earlier version would break")
    return bool(told.returncode)


if __name__ == "__main__":
    sys.exit(main())
