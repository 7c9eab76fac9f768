"""The checks of packaging/release refuse what they have to refuse. They run on small trees, with a `dev` that does what
files of the tree say.

release_test.py ROOT
"""

import hashlib
import json
import lzma
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(sys.argv.pop(1)).resolve()
sys.dont_write_bytecode = True
sys.path.insert(0, str(ROOT / "packaging/release"))
import dependencies  # noqa: E402
import release  # noqa: E402

VENV = ROOT / ".cache/venv-release"
DEV = """#!/bin/sh
echo "$1" >>"$(dirname "$0")/../gates"
case $1 in
    gen) [ ! -f unlike ] || echo changed >generated ;;
esac
[ ! -f "fails-$1" ]
"""
FILES = {
    "include/stagehand/version.h": "#define SH_VERSION_MAJOR 3\n"
    "#define SH_VERSION_MINOR 1\n#define SH_VERSION_PATCH 4\n",
    "debian/changelog": "libstagehand (3.1.4-1) unstable; urgency=medium\n",
    "bindings/rust/Cargo.toml": 'version = "3.1.4"\n'
    'libstagehand-sys = { version = "3.1.4", path = "s" }\nlibstagehand = { version = "3.1.4", path = "l" }\n',
    "bindings/rust/Cargo.lock": '[[package]]\nname = "libstagehand"\nversion = "3.1.4"\n\n'
    '[[package]]\nname = "libstagehand-sys"\nversion = "3.1.4"\n',
    "bindings/rust/libstagehand-sys/README.md": "The build needs `libstagehand.so` 3.1 or later.\n",
    "packaging/rpm/libstagehand.spec": "Version:        3.1.4\n",
    "packaging/conda/recipe.yaml": '  version: "3.1.4"\n',
    "README.md": "The version is 3.1.\n",
    "CHANGELOG.md": "# Changelog\n\n## [Unreleased]\n\n## [3.1.4] - 2026-01-02\n\n- News.\n\n## [3.1.3] - 2025-01-02\n",
    "tests/abi/frozen/3.1/program.c": "",
    "pyproject.toml": '[build-system]\nrequires = ["meson>=1.3"]\n[project]\ndependencies = ["cffi>=1.17"]\n',
    "meson.build": "dependency('fmt')\n",
    "generated": "as it is\n",
    ".gitignore": "/build*/\n",
    "dev": DEV,
}


class Tree:
    def __init__(self, work):
        self.root = pathlib.Path(work) / "tree"
        for name, text in FILES.items():
            self.write(name, text)
        (self.root / "dev").chmod(0o755)
        self.git("init", "-q")
        self.commit()

    def write(self, name, text):
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def git(self, *words):
        who = ["-c", "user.name=tests", "-c", "user.email=tests@localhost", "-c", "core.hooksPath=/dev/null"]
        when = dict(os.environ, GIT_AUTHOR_DATE="2026-01-02T03:04:05Z", GIT_COMMITTER_DATE="2026-01-02T03:04:05Z")
        subprocess.run(["git", "-C", self.root, *who, *words], check=True, env=when)

    def commit(self):
        self.git("add", "-A")
        self.git("commit", "-q", "--no-gpg-sign", "-m", "tree")

    def gates(self):
        told = self.root.parent / "gates"
        return told.read_text().split() if told.exists() else []


class Checks(unittest.TestCase):
    def setUp(self):
        work = tempfile.TemporaryDirectory(prefix="stagehand-release-")
        self.addCleanup(work.cleanup)
        self.tree = Tree(work.name)

    def refused(self, told, gates=()):
        with self.assertRaisesRegex(release.Refused, told):
            release.check(self.tree.root)
        self.assertEqual(self.tree.gates(), list(gates))

    def with_file(self, name, text):
        self.tree.write(name, text)
        self.tree.commit()

    def test_a_good_tree_passes(self):
        self.assertRegex(release.check(self.tree.root), "^[0-9a-f]{40}$")
        self.assertEqual(self.tree.gates(), ["gen", "abi", "docs", "crates", "test"])

    def test_a_dirty_tree_is_refused(self):
        self.tree.write("notes.txt", "")
        self.refused(r"the working tree has changes: notes\.txt")

    def test_other_versions_are_refused(self):
        for name in FILES:
            if "3.1" in FILES[name] and name != "CHANGELOG.md":
                self.with_file(name, FILES[name].replace("3.1", "3.0", 1))
                self.refused(f"the versions disagree: {re.escape(name)} has ")
                self.with_file(name, FILES[name])
        self.with_file("backends/sim/sim_backend.cpp", '.version = "3.1.4",\n')
        self.refused(r'the versions disagree: backends/sim/sim_backend\.cpp writes "3\.1\.4"')

    def test_a_version_without_its_changes_is_refused(self):
        told = r"CHANGELOG\.md has no section `## \[3\.1\.4\] - DATE`"
        for wrong in ("## [3.1.5] - 2026-01-02\n\n- News.\n", "## [3.1.4]\n\n- News.\n", "## [3.1.4] - 2026-01-02\n"):
            self.with_file("CHANGELOG.md", f"# Changelog\n\n{wrong}\n## [3.1.3] - 2025-01-02\n\n- Old.\n")
            self.refused(told)

    def test_changes_without_a_version_are_refused(self):
        self.with_file("CHANGELOG.md", FILES["CHANGELOG.md"].replace("[Unreleased]\n", "[Unreleased]\n\n- More.\n"))
        self.refused(r"the section \[Unreleased\] of CHANGELOG\.md is not empty")

    def test_headers_that_are_not_frozen_are_refused(self):
        self.tree.git("rm", "-q", "-r", "tests/abi/frozen/3.1")
        self.tree.commit()
        self.refused(r"the headers of 3\.1 are not frozen")

    def test_a_dependency_without_a_license_is_refused(self):
        self.with_file("lib/meson.build", "x = dependency('libnobody', required: true)\n")
        self.refused(r"lib/meson\.build names meson:libnobody")
        self.with_file("lib/meson.build", "")
        self.with_file("pyproject.toml", FILES["pyproject.toml"].replace("cffi", "nobody"))
        self.refused(r"pyproject\.toml names python:nobody")

    def test_all_reasons_are_told_at_once(self):
        self.tree.write("CHANGELOG.md", "")
        self.refused("(?s)the working tree has changes.*no section")

    def test_generated_files_that_differ_are_refused(self):
        self.with_file("unlike", "")
        self.refused("the generated files differ from what is committed: ./dev gen changes generated", ["gen"])

    def test_gates_that_fail_are_refused(self):
        gates = [name for name, _ in release.GATES]
        for number, (name, reason) in enumerate(release.GATES):
            self.with_file(f"fails-{name}", "")
            self.refused(f"{reason}: ./dev {name}", gates[: number + 1])
            self.tree.git("rm", "-q", f"fails-{name}")
            self.tree.commit()
            (self.tree.root.parent / "gates").unlink()

    def test_a_change_while_the_gates_run_is_refused(self):
        self.with_file("dev", DEV.replace("case", "[ $1 != test ] || echo other >README.md\ncase"))
        self.refused("has changed while it was checked", ["gen", "abi", "docs", "crates", "test"])

    def test_the_tarball_is_reproducible(self):
        commit = release.check(self.tree.root)
        first = release.tarball(self.tree.root, commit)
        os.utime(self.tree.root / "README.md", (0, 0))
        self.tree.git("config", "tar.umask", "0077")
        self.tree.git("config", "core.autocrlf", "true")
        self.assertEqual(first, release.tarball(self.tree.root, commit))
        self.assertIn(b"stagehand-3.1.4/README.md", lzma.decompress(first))

    def test_each_dependency_here_has_a_license(self):
        self.assertEqual(list(dependencies.unlisted(ROOT)), [])
        listed, _ = dependencies.listed()
        named = {key for key, _ in dependencies.named(ROOT)}
        old = [one["key"] for one in listed if one["key"].startswith(("meson:", "python:")) and one["key"] not in named]
        self.assertEqual(old, [], "no build file names them")

    @unittest.skipUnless((VENV / "complete").exists(), "./dev test installs what writes a bill of materials")
    def test_a_release_is_made(self):
        out = self.tree.root / "build-release/out"
        files = []
        for _ in range(2):
            command = [VENV / "bin/python", "-W", "error", ROOT / "packaging/release/release.py", self.tree.root, out]
            subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
            files.append({path.name: path.read_bytes() for path in out.iterdir()})
        self.assertEqual(files[0], files[1])
        names = [f"stagehand-3.1.4.{end}" for end in ("cdx.json", "notes.md", "tar.xz")]
        self.assertEqual(sorted(files[0]), ["SHA256SUMS", *names])
        sums = "".join(f"{hashlib.sha256(files[0][name]).hexdigest()}  {name}\n" for name in names)
        self.assertEqual(files[0]["SHA256SUMS"].decode(), sums)
        self.assertEqual(files[0][names[1]], b"- News.\n")
        bill = json.loads(files[0][names[0]])
        self.assertEqual(bill["metadata"]["component"]["version"], "3.1.4")
        self.assertTrue(all(one["licenses"] for one in bill["components"]))
        self.assertIn("nlohmann-json", [one["name"] for one in bill["components"]])

    @unittest.skipUnless((VENV / "complete").exists(), "./dev test installs what writes a bill of materials")
    def test_check_makes_nothing(self):
        out = self.tree.root / "build-release/out"
        command = [VENV / "bin/python", ROOT / "packaging/release/release.py", self.tree.root, out, "--check"]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        self.assertFalse(out.exists())
        self.tree.write("more", "")
        done = subprocess.run(command, capture_output=True, text=True)
        self.assertEqual((done.returncode, done.stderr), (1, "no release:\nthe working tree has changes: more\n"))


if __name__ == "__main__":
    unittest.main()
