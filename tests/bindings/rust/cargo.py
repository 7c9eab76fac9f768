"""Runs cargo on the Rust bindings, without the network. A test is skipped if ./dev has not fetched its packages: the
exit status is 77, and the last line is the reason.

    cargo.py test|lint|package|publish|bindings|write|model|bench SOURCE_ROOT FOLDER_OF_THE_LIBRARY
    cargo.py example SOURCE_ROOT FOLDER_OF_THE_LIBRARY EXAMPLE COMMAND...
    cargo.py pack SOURCE_ROOT FOLDER_OF_THE_LIBRARY FOLDER

test      runs the tests of the crates, and compares the error codes of examples that must not compile
lint      runs rustfmt, clippy and rustdoc, which must give no warning
package   packs both crates as they would be published, builds the packages, and sets up the library's sources in them
bindings  generates the bindings from the headers, compares them with the committed ones, and tests the crate with them
write     generates them and writes them where they are committed
example   builds one of the examples, and runs the command with the path of its program at the end
pack      packs both crates with the library's sources, into the folder that is given in addition
publish   packs both crates with the library's sources, tries their publication, and builds and runs the packed crates
          with the feature `vendored`, without any other library. Needs the network
model     runs the example engine with a real model: STAGEHAND_MINILM_DIR names it, or ./dev has downloaded it
bench     compares the cost of the safe interface with C
"""

import contextlib
import fcntl
import json
import os
import pathlib
import re
import shutil
import stat
import subprocess
import sys
import tempfile

OLDEST = (1, 85)
SKIPPED = 77


def skip(reason):
    print(f"skipped: {reason}")
    sys.exit(SKIPPED)


class Cargo:
    """Runs commands in the workspace. Everything that they make lies below .cache."""

    def __init__(self, root, library):
        self.root = pathlib.Path(root)
        self.workspace = self.root / "bindings/rust"
        cache = self.root / ".cache"
        self.environment = dict(
            os.environ,
            CARGO_HOME=str(cache / "cargo"),
            CARGO_TARGET_DIR=str(cache / "rust/target"),
            CARGO_TERM_COLOR="never",
            LD_LIBRARY_PATH=os.pathsep.join(filter(None, [library, os.environ.get("LD_LIBRARY_PATH")])),
            RUST_BACKTRACE="0",
            STAGEHAND_LIB_DIR=library,
            STAGEHAND_INCLUDE_DIR=str(self.root / "include"),
        )
        self.environment.pop("DOCS_RS", None)
        # The tests of captured steps need a backend with graphs.
        plugin = pathlib.Path(library).parent / "tests/graphs/stagehand-capture.so"
        self.environment["CAPTURE_BACKEND"] = str(plugin if plugin.exists() else "")
        # The tests of the control need its plugin.
        plugin = pathlib.Path(library).parent / "control/libstagehand-control.so"
        self.environment["CONTROL_PLUGIN_FOLDER"] = str(plugin.parent if plugin.exists() else "")

    def need(self):
        """Skips the test if cargo or the packages are missing, or if cargo is too old."""
        if not shutil.which("cargo") or not shutil.which("rustc"):
            skip("there is no cargo; ./dev test installs Debian's cargo-web")
        version = subprocess.run(["rustc", "-vV"], capture_output=True, text=True, check=True).stdout
        number = self.version = tuple(int(part) for part in re.search(r"release: (\d+)\.(\d+)", version).groups())
        if number < OLDEST:
            skip(f"rustc is {number[0]}.{number[1]}, and the bindings need {OLDEST[0]}.{OLDEST[1]}")
        # Only one run at a time: cargo releases its lock between the build and the run, and a run with another library
        # would build the programs anew in between.
        folder = self.root / ".cache/rust"
        folder.mkdir(parents=True, exist_ok=True)
        self.turn = open(folder / "turn", "w")
        fcntl.flock(self.turn, fcntl.LOCK_EX)
        host = re.search(r"host: (\S+)", version).group(1)
        fetched = self.run("fetch", "--target", host, quiet=True)
        if fetched.returncode != 0:
            lines = fetched.stdout.strip().splitlines()
            if not any("offline" in line or "download" in line for line in lines):
                print(fetched.stdout)
                sys.exit(1)
            skip("the packages of the Rust bindings were not downloaded; ./dev test does it where there is a network")

    def run(self, *command, quiet=False, **environment):
        offline = [] if command[0] == "fmt" else ["--offline", "--locked"]
        return subprocess.run(
            ["cargo", command[0], *offline, *command[1:]],
            cwd=self.workspace,
            env=dict(self.environment, **environment),
            stdout=subprocess.PIPE if quiet else None,
            stderr=subprocess.STDOUT if quiet else None,
            text=True,
        )

    def must(self, *command, **environment):
        print("cargo", *command, flush=True)
        if self.run(*command, **environment).returncode != 0:
            sys.exit(1)

    def built(self, *command):
        """Returns the messages of `cargo build`, one object per line. Exits if the build fails."""
        done = subprocess.run(
            ["cargo", "build", "--offline", "--locked", "--message-format=json-render-diagnostics", *command],
            cwd=self.workspace,
            env=self.environment,
            capture_output=True,
            text=True,
        )
        if done.returncode != 0:
            if "nable to find libclang" in done.stderr:
                skip("there is no libclang for bindgen; Debian's clang-14 brings it")
            print(done.stderr)
            sys.exit(1)
        return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]


def run_tests(cargo):
    cargo.must("test", "--workspace", "--all-targets", "--no-fail-fast")
    # rustdoc compares the error codes of compile_fail examples only if unstable features are allowed.
    folder = pathlib.Path(cargo.environment["CARGO_TARGET_DIR"])
    rustdoc = folder / "rustdoc-with-codes"
    rustdoc.write_text('#!/bin/sh\nRUSTC_BOOTSTRAP=1 exec rustdoc "$@"\n')
    rustdoc.chmod(rustdoc.stat().st_mode | stat.S_IXUSR)
    cargo.must("test", "--workspace", "--doc", RUSTDOC=str(rustdoc))


def run_lint(cargo):
    missing = [tool for tool in ("fmt", "clippy") if not shutil.which(f"cargo-{tool}")]
    if "fmt" not in missing:
        cargo.must("fmt", "--all", "--check")
    if "clippy" not in missing:
        cargo.must("clippy", "--workspace", "--all-targets", "--", "-D", "warnings")
    cargo.must("doc", "--workspace", "--no-deps", RUSTDOCFLAGS="-D warnings")
    # Documentation sites build like this, without the library.
    bare = dict(DOCS_RS="1", RUSTDOCFLAGS="-D warnings", STAGEHAND_LIB_DIR="/nonexistent")
    cargo.must("doc", "--package", "libstagehand", "--package", "libstagehand-sys", "--no-deps", **bare)
    if missing:
        skip("without " + " and ".join(f"cargo-{tool}" for tool in missing) + "; the rest is as it should be")


def run_package(cargo):
    crates = ["--package", "libstagehand-sys", "--package", "libstagehand"]
    if cargo.version < (1, 90):
        crates = crates[:2]  # an old cargo does not find one packed crate for the other
    # cargo assumes that a version of a package never changes, so the files that an earlier run has unpacked and built
    # have to be removed.
    home, target = (pathlib.Path(cargo.environment[name]) for name in ("CARGO_HOME", "CARGO_TARGET_DIR"))
    left_over = [*home.glob("registry/*/*/libstagehand*"), *target.glob("package/libstagehand*")]
    for left in [*left_over, *target.glob("debug/.fingerprint/libstagehand-sys-*")]:
        shutil.rmtree(left) if left.is_dir() else left.unlink()
    cargo.must("package", "--allow-dirty", *crates)
    for crate in crates[1::2]:
        listed = cargo.run("package", "--allow-dirty", "--list", "--package", crate, quiet=True).stdout.splitlines()
        assert {"LICENSE", "README.md", "src/lib.rs"} <= set(listed), listed
    set_up_vendored(cargo)


# What the vendored library is built from.
VENDORED = ["LICENSE", "meson.build", "meson_options.txt", "include", "lib", "backends", "packaging"]
# They are left out as Meson's options say, but Meson reads them.
VENDORED += [f"{name}/meson.build" for name in ("cli", "control", "examples", "bench", "tests")]


def copy_sources(cargo, vendor):
    listed = subprocess.run(
        ["git", "-C", cargo.root, "ls-files", "-z", "--cached", "--others", "--exclude-standard", "--", *VENDORED],
        capture_output=True,
        text=True,
        check=True,
    )
    for name in filter(None, listed.stdout.split("\0")):
        (vendor / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(cargo.root / name, vendor / name)


def set_up_vendored(cargo):
    """Meson reads every file that it needs from the sources in the crate. Only `publish` builds them."""
    script = (cargo.workspace / "libstagehand-sys/build.rs").read_text()
    options = re.findall(r'"(-D[a-z_]+=\w+)"', script)
    assert "-Dtests=disabled" in options, options
    with tempfile.TemporaryDirectory() as folder:
        vendor = pathlib.Path(folder) / "vendor"
        copy_sources(cargo, vendor)
        command = ["meson", "setup", *options, f"{folder}/build", str(vendor)]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            sys.exit(f"the sources in the crate cannot be set up:\n{done.stdout}{done.stderr}")


@contextlib.contextmanager
def sources_in_crate(cargo):
    vendor = cargo.workspace / "libstagehand-sys/vendor"
    shutil.rmtree(vendor, ignore_errors=True)
    try:
        copy_sources(cargo, vendor)
        yield
    finally:
        shutil.rmtree(vendor, ignore_errors=True)


def run_pack(cargo, folder):
    with sources_in_crate(cargo):
        crates = ["--package", "libstagehand-sys", "--package", "libstagehand"]
        cargo.must("package", "--allow-dirty", "--no-verify", *crates)
    for file in (pathlib.Path(cargo.environment["CARGO_TARGET_DIR"]) / "package").glob("*.crate"):
        shutil.copy2(file, folder)


def run_publish(cargo):
    with sources_in_crate(cargo):
        run_package(cargo)
        command = ["cargo", "publish", "--dry-run", "--allow-dirty", "--no-verify", "--locked"]
        crates = ["--package", "libstagehand-sys", "--package", "libstagehand"]
        if cargo.version < (1, 90):
            crates = crates[:2]
            print("cargo before 1.90 tries only libstagehand-sys: the other crate needs it published")
        subprocess.run([*command, *crates], cwd=cargo.workspace, env=cargo.environment, check=True)
    packed = pathlib.Path(cargo.environment["CARGO_TARGET_DIR"]) / "package"
    (crate,) = (path for path in packed.glob("libstagehand-sys-*") if path.is_dir())
    # Alone, as a registry would give it, and without the library of the build.
    environment = dict(cargo.environment, STAGEHAND_LIB_DIR="/nonexistent", LD_LIBRARY_PATH="")
    environment["CARGO_TARGET_DIR"] = str(packed / "target")
    environment["CARGO_HOME"] = str(cargo.root / ".cache/cargo")
    subprocess.run(["cargo", "test", "--features", "vendored", "--tests"], cwd=crate, env=environment, check=True)
    for file in sorted(packed.glob("*.crate")):
        print(f"{file}: {file.stat().st_size / 1e6:.2f} MB")


def generated(cargo):
    messages = cargo.built("--package", "libstagehand-sys", "--features", "bindgen")
    folders = [
        message["out_dir"]
        for message in messages
        if message["reason"] == "build-script-executed" and "libstagehand-sys" in message["package_id"]
    ]
    return (pathlib.Path(folders[-1]) / "bindings.rs").read_text()


def compare_bindings(cargo, write):
    committed = cargo.workspace / "libstagehand-sys/src/bindings.rs"
    text = generated(cargo)
    if committed.read_text() == text:
        print("the committed bindings are those of the headers")
        cargo.must("test", "--package", "libstagehand-sys", "--features", "bindgen", "--tests")
    elif write:
        committed.write_text(text)
        print(f"written: {committed.relative_to(cargo.root)}")
    else:
        print(f"{committed.relative_to(cargo.root)} is not what the headers say: run ./dev gen")
        sys.exit(1)


def example_program(cargo, name):
    messages = cargo.built("--package", "stagehand-examples", "--bin", name)
    return next(message["executable"] for message in messages if message.get("executable"))


def run_example(cargo, *command):
    sys.exit(subprocess.run(command, env=cargo.environment).returncode)


def run_model(cargo):
    folder = os.environ.get("STAGEHAND_MINILM_DIR") or cargo.root / ".cache/models/all-minilm-l6-v2"
    model = pathlib.Path(folder) / "model.safetensors"
    if not model.exists():
        skip(f"no model in {folder} (set STAGEHAND_MINILM_DIR)")
    run_example(cargo, example_program(cargo, "stream_file"), str(model))


def main():
    if len(sys.argv) < 4 or (len(sys.argv) > 4 and sys.argv[1] not in ("example", "pack")):
        sys.exit(__doc__)
    what, root, library, *arguments = sys.argv[1:]
    cargo = Cargo(root, library)
    cargo.need()
    if what == "test":
        run_tests(cargo)
    elif what == "lint":
        run_lint(cargo)
    elif what == "package":
        run_package(cargo)
    elif what == "pack":
        run_pack(cargo, *arguments)
    elif what == "publish":
        run_publish(cargo)
    elif what in ("bindings", "write"):
        compare_bindings(cargo, what == "write")
    elif what == "example":
        name, *command = arguments
        run_example(cargo, *command, example_program(cargo, name))
    elif what == "model":
        run_model(cargo)
    elif what == "bench":
        cargo.must("bench", "--package", "libstagehand", "--bench", "acquire")
    else:
        sys.exit(__doc__)


if __name__ == "__main__":
    main()
