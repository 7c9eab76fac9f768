"""The Rust bindings under cargo, without the network: what ./dev has not fetched is skipped, with exit status 77 and the reason as last line.

    cargo.py test|lint|package|bindings|write|model|bench SOURCE_ROOT FOLDER_OF_THE_LIBRARY
    cargo.py example SOURCE_ROOT FOLDER_OF_THE_LIBRARY EXAMPLE COMMAND...

test      the tests of the crates; error codes of what must not compile are compared
lint      rustfmt, clippy and rustdoc, without a warning
package   packs both crates as they would be published, and builds what was packed
bindings  generates the bindings from the headers, compares them with the committed ones, and tests the crate with them
write     generates them and writes them where they are committed
example   builds one of the examples, and runs the command with the path of its program at the end
model     the example engine with a real model, the one that ./dev has downloaded or STAGEHAND_MINILM_DIR names
bench     what the safe interface costs beside C
"""
import fcntl
import json
import os
import pathlib
import re
import shutil
import stat
import subprocess
import sys

OLDEST = (1, 85)
SKIPPED = 77


def skip(reason):
    print(f"skipped: {reason}")
    sys.exit(SKIPPED)


class Cargo:
    """Commands in the workspace, with everything that they make below .cache."""

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
        # A backend with graphs, for the tests.
        plugin = pathlib.Path(library).parent / "tests/graphs/stagehand-capture.so"
        self.environment["CAPTURE_BACKEND"] = str(plugin if plugin.exists() else "")

    def need(self):
        """Leaves where there is no cargo, an old one, or none of the packages."""
        if not shutil.which("cargo") or not shutil.which("rustc"):
            skip("there is no cargo; ./dev test installs Debian's cargo-web")
        version = subprocess.run(["rustc", "-vV"], capture_output=True, text=True, check=True).stdout
        number = self.version = tuple(int(part) for part in re.search(r"release: (\d+)\.(\d+)", version).groups())
        if number < OLDEST:
            skip(f"rustc is {number[0]}.{number[1]}, and the bindings need {OLDEST[0]}.{OLDEST[1]}")
        # One run at a time: cargo lets go of what it has built before it runs it, and a run with another library builds it anew.
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
        """What `cargo build` tells: one object a line. Leaves when it fails."""
        done = subprocess.run(["cargo", "build", "--offline", "--locked", "--message-format=json-render-diagnostics", *command],
                              cwd=self.workspace, env=self.environment, capture_output=True, text=True)
        if done.returncode != 0:
            if "nable to find libclang" in done.stderr:
                skip("there is no libclang for bindgen; Debian's clang-14 brings it")
            print(done.stderr)
            sys.exit(1)
        return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]


def run_tests(cargo):
    cargo.must("test", "--workspace", "--all-targets", "--no-fail-fast")
    # rustdoc compares the error codes of what must not compile only when it may use what is not stable.
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
    # As documentation sites do, which have no library.
    bare = dict(DOCS_RS="1", RUSTDOCFLAGS="-D warnings", STAGEHAND_LIB_DIR="/nonexistent")
    cargo.must("doc", "--package", "libstagehand", "--package", "libstagehand-sys", "--no-deps", **bare)
    if missing:
        skip("without " + " and ".join(f"cargo-{tool}" for tool in missing) + "; the rest is as it should be")


def run_package(cargo):
    crates = ["--package", "libstagehand-sys", "--package", "libstagehand"]
    if cargo.version < (1, 90):
        crates = crates[:2]  # it does not find the one for the other among those that it packs
    # cargo takes what is packed of one version for the same for ever: what an earlier run has unpacked, and built of it, has to go.
    home, target = (pathlib.Path(cargo.environment[name]) for name in ("CARGO_HOME", "CARGO_TARGET_DIR"))
    for left in [*home.glob("registry/*/*/libstagehand*"), *target.glob("debug/.fingerprint/libstagehand-sys-*")]:
        shutil.rmtree(left) if left.is_dir() else left.unlink()
    cargo.must("package", "--allow-dirty", *crates)
    for crate in crates[1::2]:
        listed = cargo.run("package", "--allow-dirty", "--list", "--package", crate, quiet=True).stdout.splitlines()
        assert {"LICENSE", "README.md", "src/lib.rs"} <= set(listed), listed


def generated(cargo):
    messages = cargo.built("--package", "libstagehand-sys", "--features", "bindgen")
    folders = [message["out_dir"] for message in messages
               if message["reason"] == "build-script-executed" and "libstagehand-sys" in message["package_id"]]
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
    if len(sys.argv) < 4 or (len(sys.argv) > 4 and sys.argv[1] != "example"):
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
