"""Makes a release of what is committed, or says why it cannot be made.

release.py ROOT OUT [--check]

OUT gets the source tarball, the bill of materials, the notes and SHA256SUMS. --check checks everything and makes
nothing. The last gate runs all tests.
"""

import hashlib
import lzma
import os
import pathlib
import re
import shutil
import subprocess
import sys

import dependencies
import versions

# Commands of ./dev, in this order. Each has to succeed and to leave the tree as it is.
GATES = [
    ("gen", "the generated files differ from what is committed"),
    ("abi", "the checks of the binary interface fail"),
    ("docs", "the manual has errors"),
    ("crates", "the crates cannot be published, or break what the last release promised"),
    ("test", "the tests fail"),
]


class Refused(Exception):
    pass


def git(root, *words, text=True):
    command = ["git", "-C", str(root), *words]
    return subprocess.run(command, stdout=subprocess.PIPE, check=True, text=text).stdout


def changed_files(root):
    return [line[3:] for line in git(root, "status", "--porcelain").splitlines()]


def section(text, title):
    """The text below a heading of the second level up to the next one, or None. `title` is a pattern."""
    found = re.search(rf"^## {title}[ \t]*\n(.*?)(?=^## |\Z)", text, flags=re.S | re.M)
    return found and found[1].strip() + "\n"


def notes(root):
    version = versions.version_of(root)
    return section((root / "CHANGELOG.md").read_text(), rf"\[{re.escape(version)}\] - \d{{4}}-\d\d-\d\d")


def problems(root):
    """What stands in the way of a release, as far as the files tell it."""
    version = versions.version_of(root)
    if changed := changed_files(root):
        yield f"the working tree has changes: {', '.join(changed[:5])}{', …' if len(changed) > 5 else ''}"
    for line in versions.disagreements(root):
        yield f"the versions disagree: {line}"
    told = notes(root)
    if told is None or not told.strip():
        yield f"CHANGELOG.md has no section `## [{version}] - DATE` with the changes of this version"
    if (section((root / "CHANGELOG.md").read_text(), r"\[Unreleased\]") or "").strip():
        yield f"the section [Unreleased] of CHANGELOG.md is not empty: its lines belong to the section of {version}"
    series = ".".join(version.split(".")[:2])
    if not (root / f"tests/abi/frozen/{series}").is_dir():
        yield f"the headers of {series} are not frozen: run tests/abi/freeze.sh"
    for line in dependencies.unlisted(root):
        yield f"a dependency has no license: {line}"


def check(root):
    if found := list(problems(root)):
        raise Refused("\n".join(found))
    commit = git(root, "rev-parse", "HEAD").strip()
    for name, reason in GATES:
        print(f"./dev {name}", flush=True)
        code = subprocess.run([str(root / "dev"), name], cwd=root).returncode
        if name == "gen" and code == 0:
            code = changed_files(root)
        if code:
            raise Refused(f"{reason}: ./dev {name}" + (f" changes {', '.join(code)}" if isinstance(code, list) else ""))
    if changed_files(root) or git(root, "rev-parse", "HEAD").strip() != commit:
        raise Refused("the working tree has changed while it was checked")
    return commit


def tarball(root, commit):
    """The sources of a commit. The same commit gives the same bytes: git takes all times from the commit."""
    name = f"stagehand-{versions.version_of(root)}"
    settings = ["-c", "tar.umask=0022", "-c", "core.autocrlf=false"]
    return lzma.compress(
        git(root, *settings, "archive", "--format=tar", f"--prefix={name}/", commit, text=False), preset=6
    )


def make(root, out, commit):
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    name = f"stagehand-{versions.version_of(root)}"
    packed = tarball(root, commit)
    if packed != tarball(root, commit):
        raise Refused("two tarballs of the same commit differ")
    (out / f"{name}.tar.xz").write_bytes(packed)
    (out / f"{name}.notes.md").write_text(notes(root))
    script = pathlib.Path(__file__).with_name("sbom.py")
    seconds = git(root, "show", "-s", "--format=%ct", commit).strip()
    bill = out / f"{name}.cdx.json"
    done = subprocess.run([sys.executable, str(script), str(root), commit, seconds, str(bill)])
    if done.returncode != 0:
        raise Refused("the bill of materials could not be made")
    sums = [f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}" for path in sorted(out.iterdir())]
    (out / "SHA256SUMS").write_text("\n".join(sums) + "\n")


def main():
    root, out = pathlib.Path(sys.argv[1]).resolve(), pathlib.Path(sys.argv[2])
    try:
        commit = check(root)
        if "--check" not in sys.argv[3:]:
            make(root, out, commit)
            print(*sorted(os.listdir(out)), sep="\n")
    except Refused as refused:
        sys.exit(f"no release:\n{refused}")


if __name__ == "__main__":
    main()
