"""Builds tests/install/consumer in each way that a project can use the library, and examples/ggml. Runs them.

consumers_test.py pkg-config MESON SOURCE_DIR BUILD_DIR BACKENDS
consumers_test.py cmake      MESON SOURCE_DIR BUILD_DIR BACKENDS
consumers_test.py wrap       MESON SOURCE_DIR BUILD_DIR BACKENDS OPTION...
consumers_test.py ggml       MESON SOURCE_DIR BUILD_DIR BACKENDS GGML_DIR

BACKENDS are those that the static library holds, with commas. BUILD_DIR has both libraries.
"""

import os
import pathlib
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile

CC = os.environ.get("CC", "cc").split()
SHARED = ["host", "sim"]


def attempt(*command, **kwargs):
    words = [str(word) for word in command]
    return subprocess.run(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, **kwargs)


def run(*command, **kwargs):
    done = attempt(*command, **kwargs)
    if done.returncode != 0:
        sys.exit(f"{done.stdout}\n{' '.join(str(word) for word in command)}: exit status {done.returncode}")
    return done.stdout


class Tree:
    """The installed tree, and what the environment needs to find it."""

    def __init__(self, folder):
        self.folder = folder
        (self.pkgconfig,) = folder.rglob("stagehand.pc")
        self.libdir = self.pkgconfig.parent.parent
        self.prefix = next(folder.rglob("include/stagehand")).parent.parent
        self.environment = {name: value for name, value in os.environ.items() if not name.startswith("STAGEHAND")}
        self.environment.update(
            PKG_CONFIG_PATH=f"{self.pkgconfig.parent}:{os.environ.get('PKG_CONFIG_PATH', '')}",
            PKG_CONFIG_ALLOW_SYSTEM_LIBS="1",
        )

    def flags(self, *options):
        # The tree lies elsewhere than it was built for, but liburing does not.
        text = run(
            "pkg-config", f"--define-variable=prefix={self.prefix}", *options, "--cflags", "--libs", "stagehand",
            env=self.environment,
        )  # fmt: skip
        return text.split()


def check(program, version, backends, environment=None, links=()):
    """Runs the program, and compares its words and the libraries that it links."""
    said = run(program, env=environment)
    wanted = f"version {version} backends {' '.join(backends)} says streamed\n"
    if said != wanted:
        sys.exit(f"{program} printed {said!r}, not {wanted!r}")
    needed = set(re.findall(r"NEEDED.*\[(.*)\]", run("readelf", "-d", program)))
    if not needed <= {
        "libc.so.6",
        "libm.so.6",
        "libstdc++.so.6",
        "libgcc_s.so.1",
        "liburing.so.2",
        "ld-linux-x86-64.so.2",
        *links,
    }:
        sys.exit(f"{program} links {needed}")
    if any("stagehand" in name for name in needed) != bool(links):
        sys.exit(f"{program} links {needed}, not {links}")


def pkg_config(tree, source, work, version, static):
    with_library = dict(tree.environment, LD_LIBRARY_PATH=str(tree.libdir))
    text = (tree.pkgconfig).read_text()
    for line in ("URL: http", "License: Apache-2.0", "Libs.private: "):
        assert line in text, f"stagehand.pc has no {line}\n{text}"
    run(*CC, source, "-o", work / "shared", *tree.flags())
    check(work / "shared", version, SHARED, with_library, ["libstagehand.so.0"])
    assert not any("uring" in flag or "stdc++" in flag for flag in tree.flags()), tree.flags()

    # The linker takes the static library if there is no shared one. The linker of C knows nothing of C++.
    alone = work / "static-only"
    shutil.copytree(tree.folder, alone, symlinks=True)
    for file in alone.rglob("libstagehand.so*"):
        file.unlink()
    run(*CC, source, "-o", work / "static", *Tree(alone).flags("--static"))
    check(work / "static", version, static, tree.environment)
    if attempt(*CC, "-x", "c", "-", "-static", "-o", work / "empty", input="int main(void) { return 0; }\n").returncode:
        return print("the C library has no static form here")
    run(*CC, source, "-o", work / "whole", "-static", *tree.flags("--static"))
    check(work / "whole", version, static, tree.environment)


def cmake(tree, source, work, version, static):
    if not shutil.which("cmake"):
        print("there is no cmake")
        return 77
    project = source.parent

    def configure(name, *options):
        return attempt(
            "cmake", "-G", "Ninja", "-S", project, "-B", work / name, "--warn-uninitialized", "-Werror=dev",
            f"-DCMAKE_PREFIX_PATH={tree.prefix}", "-DCMAKE_FIND_USE_PACKAGE_REGISTRY=OFF", *options,
            env=tree.environment,
        )  # fmt: skip

    for name, options, backends, links in [
        ("shared", [], SHARED, ["libstagehand.so.0"]),
        ("static", ["-DSTAGEHAND_USE_STATIC=ON"], static, []),
    ]:
        done = configure(name, "-DWANTED=0.2", *options)
        assert done.returncode == 0 and "Warning" not in done.stdout, done.stdout
        run("cmake", "--build", work / name, env=tree.environment)
        check(work / name / "consumer", version, backends, tree.environment, links)
    for name, wanted, told in [("later", "99", "0.2.0"), ("range", "0.3...1.0", "0.2.0")]:
        done = configure(name, f"-DWANTED={wanted}")
        assert done.returncode != 0 and f"version: {told}" in done.stdout, done.stdout
    assert configure("within", "-DWANTED=0.1...0.9").returncode == 0
    for file in tree.folder.rglob("libstagehand.a"):
        file.unlink()
    done = configure("gone", "-DSTAGEHAND_USE_STATIC=ON", "-DWANTED=0.2")
    assert done.returncode != 0 and "the library that was asked for is not in" in done.stdout, done.stdout
    return 0


def ggml(tree, source_dir, work, ggml_dir):
    """Builds examples/ggml against ggml's sources, and compares what it prints with its README."""
    if not shutil.which("cmake"):
        print("there is no cmake")
        return 77
    run(
        "cmake", "-G", "Ninja", "-S", source_dir / "examples/ggml", "-B", work / "ggml", f"-DGGML={ggml_dir}",
        f"-DCMAKE_PREFIX_PATH={tree.prefix}", "-DCMAKE_BUILD_TYPE=Release", env=tree.environment,
    )  # fmt: skip
    run("cmake", "--build", work / "ggml", "--target", "streamed_ggml", env=tree.environment)
    said = run(work / "ggml" / "streamed_ggml", env=tree.environment)
    readme = (source_dir / "examples/ggml/README.md").read_text()
    wanted = "".join(re.findall(r"^    (.*\n)", readme.partition("It prints:")[2], re.MULTILINE))
    assert said == wanted and wanted, f"{said!r}, not {wanted!r}"
    return 0


def source_tarball(source_dir, name, to):
    """Packs the sources as `meson dist` does, but as they are now."""
    listed = run("git", "-C", source_dir, "ls-files", "-z", "--cached", "--others", "--exclude-standard")
    with tarfile.open(to, "w:xz", preset=0) as archive:
        for file in listed.split("\0"):
            left_out = file.startswith("tests/") and file != "tests/meson.build"
            if file and not left_out and (source_dir / file).exists():
                archive.add(source_dir / file, f"{name}/{file}")


def wrap(meson, source_dir, build_dir, work, version, static, options):
    if attempt("git", "-C", source_dir, "rev-parse").returncode:
        print("not a git checkout")
        return 77
    project = work / "user"
    shutil.copytree(source_dir / "tests/install/consumer", project)
    packed = project / "subprojects/packagefiles"
    packed.mkdir(parents=True)
    text = (build_dir / "packaging/stagehand.wrap").read_text()
    (project / "subprojects/stagehand.wrap").write_text(text)
    directory = re.search(r"directory = (.*)", text)[1]
    source_tarball(source_dir, directory, packed / re.search(r"source_filename = (.*)", text)[1])
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith(("PKG_CONFIG", "STAGEHAND"))
    }
    # Several sources at once and no optimisation: what is tested is not the compiler.
    quick = ["--unity=on", "--unity-size=40", "-Ddefault_library=static", "--force-fallback-for=stagehand"]
    run(meson, "setup", work / "build", project, *quick, *options, env=environment)
    run("ninja", "-C", work / "build", "consumer", env=environment)
    check(work / "build" / "consumer", version, static, environment)
    assert run(meson, "introspect", "--tests", work / "build", env=environment).strip() == "[]", "it brings its tests"
    return 0


def main():
    what, meson, source_dir, build_dir, static = sys.argv[1:6]
    source_dir, build_dir = pathlib.Path(source_dir), pathlib.Path(build_dir)
    header = (source_dir / "include/stagehand/version.h").read_text()
    major, minor, patch = (int(n) for n in re.findall(r"SH_VERSION_(?:MAJOR|MINOR|PATCH) (\d+)", header))
    version = major * 1_000_000 + minor * 1_000 + patch
    work = pathlib.Path(tempfile.mkdtemp(prefix="stagehand-consumers-"))
    try:
        if what == "wrap":
            return wrap(meson, source_dir, build_dir, work, version, static.split(","), sys.argv[6:])
        run(meson, "install", "-C", build_dir, "--no-rebuild", "--destdir", work / "tree", "--tags", "runtime,devel")
        if what == "ggml":
            return ggml(Tree(work / "tree"), source_dir, work, *sys.argv[6:])
        way = {"pkg-config": pkg_config, "cmake": cmake}[what]
        source = source_dir / "tests/install/consumer/consumer.c"
        return way(Tree(work / "tree"), source, work, version, static.split(","))
    finally:
        shutil.rmtree(work, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main())
