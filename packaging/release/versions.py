"""The version of the library stands in include/stagehand/version.h. Each other place that has to name it is compared
with that.
"""

import re

# File, the pattern of the version in it, and how many of its numbers stand there.
PLACES = [
    ("debian/changelog", r"\Alibstagehand \(([\d.]+)-", 3),
    ("bindings/rust/Cargo.toml", r'^version = "(.*)"$', 3),
    ("bindings/rust/Cargo.toml", r'^libstagehand-sys = \{ version = "(.*?)"', 3),
    ("bindings/rust/Cargo.toml", r'^libstagehand = \{ version = "(.*?)"', 3),
    ("bindings/rust/Cargo.lock", r'^name = "libstagehand"\nversion = "(.*)"$', 3),
    ("bindings/rust/Cargo.lock", r'^name = "libstagehand-sys"\nversion = "(.*)"$', 3),
    ("bindings/rust/libstagehand-sys/README.md", r"`libstagehand\.so` ([\d.]+\d) or later", 2),
    ("packaging/rpm/libstagehand.spec", r"^Version:\s+(\S+)$", 3),
    ("packaging/conda/recipe.yaml", r'^  version: "(.*)"$', 3),
    ("README.md", r"^The version is ([\d.]+\d)\.", 2),
]


def version_of(root):
    text = (root / "include/stagehand/version.h").read_text()
    return ".".join(re.findall(r"SH_VERSION_(?:MAJOR|MINOR|PATCH) (\d+)", text))


def disagreements(root):
    """A line for each place that names another version, or none."""
    version = version_of(root)
    for name, pattern, count in PLACES:
        wanted = ".".join(version.split(".")[:count])
        found = set(re.findall(pattern, (root / name).read_text(), flags=re.M))
        if found != {wanted}:
            yield f"{name} has {' and '.join(sorted(found)) or 'no version'}, not {wanted}"
    for path in sorted(root.glob("backends/**/*.cpp")):
        for told in re.findall(r'\bversion = (".*?")', path.read_text()):
            yield f"{path.relative_to(root)} writes {told} for a version, in place of support::kVersion"
