"""Compares the version of include/stagehand/version.h with each other place that has to name it, and the list of
Debian's symbols with the library.

versions_test.py ROOT LIBRARY
"""

import pathlib
import re
import subprocess
import sys

root, library = pathlib.Path(sys.argv[1]), sys.argv[2]
numbers = re.findall(r"SH_VERSION_(?:MAJOR|MINOR|PATCH) (\d+)", (root / "include/stagehand/version.h").read_text())
version = ".".join(numbers)
places = {
    "debian/changelog": r"\Alibstagehand \(([\d.]+)-",
    "bindings/rust/Cargo.toml": r'^version = "(.*)"$',
    "packaging/rpm/libstagehand.spec": r"^Version:\s+(\S+)$",
    "packaging/conda/recipe.yaml": r'^  version: "(.*)"$',
}
wrong = []
for name, pattern in places.items():
    found = re.search(pattern, (root / name).read_text(), flags=re.M)
    if not found or found[1] != version:
        wrong.append(f"{name} has {found[1] if found else 'no version'}, not {version}")
for name in re.findall(r'^libstagehand.* version = "(.*?)"', (root / "bindings/rust/Cargo.toml").read_text(), re.M):
    if name != version:
        wrong.append(f"a crate of bindings/rust/Cargo.toml needs {name}, not {version}")

script = [sys.executable, root / "packaging/debian_symbols.py", root / "lib/libstagehand.map"]
told = subprocess.run(script, capture_output=True, text=True, check=True).stdout
listed = set(re.findall(r"^ (\S+)@", told, flags=re.M))
exported = subprocess.run(["nm", "-D", "--defined-only", library], capture_output=True, text=True, check=True).stdout
exported = {line.split()[-1].split("@")[0] for line in exported.splitlines()}
if listed != exported:
    wrong.append(f"Debian's list of symbols differs from the library's: {sorted(listed ^ exported)}")
if wrong:
    sys.exit("\n".join(wrong))
print(f"every place has {version}, and {len(listed)} symbols are listed")
