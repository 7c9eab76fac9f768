"""Compares the version of include/stagehand/version.h with each other place that has to name it, and the list of
Debian's symbols with the library.

versions_test.py ROOT LIBRARY
"""

import pathlib
import re
import subprocess
import sys

root, library = pathlib.Path(sys.argv[1]), sys.argv[2]
sys.path.insert(0, str(root / "packaging/release"))
import versions  # noqa: E402

wrong = list(versions.disagreements(root))
script = [sys.executable, root / "packaging/debian_symbols.py", root / "lib/libstagehand.map"]
told = subprocess.run(script, capture_output=True, text=True, check=True).stdout
listed = set(re.findall(r"^ (\S+)@", told, flags=re.M))
exported = subprocess.run(["nm", "-D", "--defined-only", library], capture_output=True, text=True, check=True).stdout
exported = {line.split()[-1].split("@")[0] for line in exported.splitlines()}
if listed != exported:
    wrong.append(f"Debian's list of symbols differs from the library's: {sorted(listed ^ exported)}")
if wrong:
    sys.exit("\n".join(wrong))
print(f"every place has {versions.version_of(root)}, and {len(listed)} symbols are listed")
