"""Makes mistakes in copies of the library's sources, one at a time, and tells which of them no test notices.

    mutants.py ROOT BUILD_ROOT [--count N] [--skip N] [--seed N] [--seconds N] [--list] [--files FOLDER_OR_FILE...]

`./dev mutants` calls it. The working tree is copied, and only the copy is changed and built. A mistake rebuilds one
object. Then the tests of the suites unit, conformance, stress and matrix run, the likeliest first, until one fails or
hangs, or the time is over. Mistakes that change nothing are in equivalent.toml with the reason, and others take their
place.
"""

import argparse
import collections
import filecmp
import hashlib
import os
import pathlib
import random
import shutil
import subprocess
import sys
import tomllib

import mutations
from programs import Programs

HERE = pathlib.Path(__file__).parent
FOLDERS = ["lib/core/spill", "lib/core/occupancy", "lib/core/movement", "lib/core/runtime", "lib/transfer"]
# How often each kind is chosen. Most of what matters is a wait.
WEIGHTS = {"wait": 4, "rollback": 2, "bound": 2, "swap": 1}


class Copy:
    """A copy of the working tree. Its build folder lies in it as in a clone, so that ccache knows the objects."""

    def __init__(self, root, build_root):
        self.root, self.folder, self.build_root = root, build_root / "source", build_root
        self.build = self.folder / "build"

    def renew(self):
        """Copies what has changed, so that only that is compiled anew."""
        listed = subprocess.run(
            ["git", "-C", self.root, "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
            capture_output=True,
            text=True,
            check=True,
        ).stdout.split("\0")
        names = {name for name in listed if name and (self.root / name).is_file()}
        for name in names:
            source, target = self.root / name, self.folder / name
            if target.is_file() and filecmp.cmp(source, target, shallow=False):
                continue
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(source, target)
        for path in [path for path in self.folder.rglob("*") if path.is_file()]:
            name = path.relative_to(self.folder)
            if name.parts[0] not in (".cache", "build") and str(name) not in names:
                path.unlink()
        cache = self.folder / ".cache"
        (self.root / ".cache").mkdir(exist_ok=True)
        if not cache.is_symlink():
            cache.symlink_to(self.root / ".cache")

    def dev_build(self, *targets):
        names = ("STAGEHAND_BUILD_ROOT", "STAGEHAND_WERROR", "STAGEHAND_TOGETHER", "CCACHE_BASEDIR")
        environment = {name: value for name, value in os.environ.items() if name not in names}
        subprocess.run([self.folder / "dev", "build", *targets], env=environment, check=True, stdout=subprocess.DEVNULL)

    def ninja(self, *targets):
        environment = os.environ | {"CCACHE_BASEDIR": str(self.folder)}
        command = ["ninja", "-C", self.build, *targets]
        return subprocess.run(command, env=environment, capture_output=True, check=False)

    def object_of(self, file):
        name = str(pathlib.PurePath(file).relative_to("lib")).replace("/", "_")
        return f"lib/libstagehand-internal.a.p/{name}.o"

    def digest(self, file):
        return hashlib.sha256((self.build / self.object_of(file)).read_bytes()).digest()


def sources(root, wanted):
    for name in wanted:
        path = root / name
        found = sorted(path.rglob("*.cpp")) if path.is_dir() else [path]
        if not found or not found[0].is_file():
            sys.exit(f"mutants: there is no source {name}")
        yield from (str(file.relative_to(root)) for file in found)


def drawn(root, files, seed):
    """All mutations of the files, in the order in which they are tried. A changed source moves only its own."""
    by_kind = collections.defaultdict(list)
    seen = collections.Counter()
    for file in files:
        for mutation in mutations.find(file, (root / file).read_bytes()):
            seen[key_of(mutation)] += 1
            name = repr((seed, mutation.kind, key_of(mutation), seen[key_of(mutation)]))
            by_kind[mutation.kind].append((hashlib.sha256(name.encode()).digest(), mutation))
    for found in by_kind.values():
        found.sort(key=lambda pair: pair[0], reverse=True)
    chance = random.Random(seed)
    while any(by_kind.values()):
        kinds = [kind for kind in mutations.KINDS if by_kind[kind]]
        yield by_kind[chance.choices(kinds, [WEIGHTS[kind] for kind in kinds])[0]].pop()[1]


def known_equivalents():
    with open(HERE / "equivalent.toml", "rb") as file:
        return {key_of(entry): entry["reason"] for entry in tomllib.load(file).get("mutant", [])}


def key_of(entry):
    get = entry.get if isinstance(entry, dict) else lambda name: getattr(entry, name)
    return get("file"), get("function"), mutations.one_line(get("before")), mutations.one_line(get("after"))


def try_out(copy, programs, mutation, seconds):
    """(what noticed the mutation, or "" if nothing did, ""), or (None, why it is no mutant)."""
    path = copy.folder / mutation.file
    original = path.read_bytes()
    if copy.ninja(copy.object_of(mutation.file)).returncode != 0:
        sys.exit(f"mutants: {mutation.file} cannot be compiled as it is")
    before = copy.digest(mutation.file)
    path.write_bytes(mutation.apply(original))
    try:
        if copy.ninja(copy.object_of(mutation.file)).returncode != 0:
            return None, "does not compile"
        if copy.digest(mutation.file) == before:
            return None, "the same object"
        return programs.first_failure(mutation.file, seconds), ""
    finally:
        path.write_bytes(original)


def main():
    parser = argparse.ArgumentParser(prog="./dev mutants", description="Which mistakes does no test notice?")
    parser.add_argument("root", type=pathlib.Path, help=argparse.SUPPRESS)
    parser.add_argument("build_root", type=pathlib.Path, help=argparse.SUPPRESS)
    parser.add_argument("--count", type=int, default=40, help="how many mutants (40)")
    parser.add_argument("--skip", type=int, default=0, help="go on after so many, as an earlier run told (0)")
    parser.add_argument("--seed", type=int, default=None, help="the same seed gives the same mutants (a new one)")
    parser.add_argument("--seconds", type=int, default=240, help="of tests for each mutant (240)")
    parser.add_argument("--list", action="store_true", help="print the mutants, and build nothing")
    parser.add_argument("--files", nargs="+", default=FOLDERS, help="sources or folders of them")
    options = parser.parse_args()
    seed = random.randrange(10000) if options.seed is None else options.seed
    print(f"seed {seed}", flush=True)
    files = list(sources(options.root, options.files))
    candidates = list(drawn(options.root, files, seed))
    equivalent = known_equivalents()
    for key in equivalent.keys() - {key_of(mutation) for mutation in candidates}:
        if key[0] in files or not (options.root / key[0]).is_file():
            sys.exit(f"mutants: no mutant is like this entry of equivalent.toml: {key}")
    if options.list:
        for mutation, _ in zip(candidates, range(options.count)):
            print(f"{mutation.title()}\n{mutation.difference()}")
        return 0
    copy = Copy(options.root, options.build_root)
    copy.renew()
    copy.dev_build("lib/libstagehand-whole.a", "tests/libcore-engine.a")
    programs = Programs(copy)
    tried, survivors, place = 0, [], 0
    for place, mutation in enumerate(candidates, 1):
        if place <= options.skip:
            continue
        if reason := equivalent.get(key_of(mutation)):
            print(f"equivalent  {mutation.title()}: {reason}", flush=True)
            continue
        noticed, why = try_out(copy, programs, mutation, options.seconds)
        if noticed is None:
            print(f"no mutant  {mutation.title()}: {why}", flush=True)
            continue
        tried += 1
        print(f"{'noticed' if noticed else 'SURVIVED'}  {mutation.title()}: {noticed or 'no test failed'}")
        print(mutation.difference(), flush=True)
        if not noticed:
            survivors.append(mutation)
        if tried >= options.count:
            break
    print(f"{tried - len(survivors)} of {tried} mutants were noticed (seed {seed}). --skip {place} goes on.")
    return 1 if survivors else 0


if __name__ == "__main__":
    sys.exit(main())
