"""Tests the installed tree with README.md's example.

install_test.py MESON SOURCE_DIR BUILD_DIR
"""

import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile


def run(*command, **kwargs):
    done = subprocess.run(
        [str(word) for word in command], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, **kwargs
    )
    if done.returncode != 0:
        print(done.stdout)
        sys.exit(f"{' '.join(str(word) for word in command)}: exit status {done.returncode}")
    return done.stdout


def readme_example(source_dir, folder):
    """Writes the C program of README.md to a file."""
    examples = re.findall(r"^```c\n(.*?)^```", (source_dir / "README.md").read_text(), flags=re.S | re.M)
    assert len(examples) == 1, f"README.md has {len(examples)} C examples"
    file = folder / "example.c"
    file.write_text(examples[0])
    return file


def check_output(text):
    lines = text.splitlines()
    assert len(lines) == 24 and lines[0].startswith("step 0 layer 0 at 0x"), text
    for layer in range(8):  # a block's address is the same in every step
        assert len({line.split()[-1] for line in lines if f"layer {layer} " in line}) == 1, text


CPP = """#include <stagehand/stagehand.hpp>
int main() { return stagehand::Device("host").memory().budget_bytes > 0 ? 0 : 1; }
"""


def installed(meson, source_dir, build_dir, work):
    tree = work / "tree"
    run(meson, "install", "-C", build_dir, "--no-rebuild", "--destdir", tree)
    (pkgconfig,) = tree.rglob("stagehand.pc")
    libdir = pkgconfig.parent.parent
    names = {path.name for path in libdir.iterdir() if path.is_file()}
    assert "libstagehand.so" in names and "libstagehand.so.0" in names, names
    assert not any("internal" in name or "whole" in name for name in names), names
    plugins = {path.name for path in libdir.rglob("stagehand-*.so")}
    assert plugins <= {"stagehand-cuda.so", "stagehand-hip.so"}, plugins  # that for tests stays in the build folder
    control = {path.name for path in libdir.rglob("libstagehand-control.so")}
    built = (build_dir / "control/libstagehand-control.so").exists()
    assert control == ({"libstagehand-control.so"} if built else set()), control
    headers = {path.name for path in next(tree.rglob("include/stagehand")).iterdir()}
    assert headers == {path.name for path in (source_dir / "include/stagehand").iterdir()}, headers
    (documents,) = tree.rglob("share/doc/libstagehand")
    told = {str(path.relative_to(documents)) for path in documents.rglob("*")}
    wanted = {"LICENSE", "CHANGELOG.md", "README.md", "consumers.md", "command.md", "examples/minilm/main.c"}
    assert wanted <= told, wanted - told
    assert not any("__pycache__" in name for name in told), told

    environment = dict(
        os.environ,
        PKG_CONFIG_PATH=str(pkgconfig.parent),
        PKG_CONFIG_SYSROOT_DIR=str(tree),
        PKG_CONFIG_ALLOW_SYSTEM_CFLAGS="1",
        PKG_CONFIG_ALLOW_SYSTEM_LIBS="1",
        LD_LIBRARY_PATH=str(libdir),
    )
    for name in ("STAGEHAND_BACKEND_PATH", "STAGEHAND_TRACE", "STAGEHAND_LOG"):
        environment.pop(name, None)
    flags = run("pkg-config", "--cflags", "--libs", "stagehand", env=environment).split()
    backend_dir = run("pkg-config", "--variable=backenddir", "stagehand", env=environment).strip()
    assert backend_dir.endswith("/stagehand/spi-1"), backend_dir
    run(
        *os.environ.get("CC", "cc").split(),
        "-std=c99",
        "-Wall",
        "-Wextra",
        "-Werror",
        readme_example(source_dir, work),
        "-o",
        work / "example",
        *flags,
    )
    check_output(run(work / "example", env=environment))
    (work / "owners.cpp").write_text(CPP)
    run(*os.environ.get("CXX", "c++").split(), "-std=c++17", work / "owners.cpp", "-o", work / "owners", *flags)
    run(work / "owners", env=environment)

    preload = libdir / "stagehand/torch_memory_saver_hook_mode_preload.abi3.so"
    said = run("env", f"LD_PRELOAD={preload}", "TMS_INIT_ENABLE=1", "echo", "loaded", env=environment)
    assert preload.exists() and said == "loaded\n", said  # the loader tells of what it cannot load

    # The build folder can be used in the same way, as README.md says.
    uninstalled = dict(
        os.environ, PKG_CONFIG_PATH=str(build_dir / "meson-uninstalled"), LD_LIBRARY_PATH=str(build_dir / "lib")
    )
    flags = run("pkg-config", "--cflags", "--libs", "stagehand", env=uninstalled).split()
    run(*os.environ.get("CC", "cc").split(), work / "example.c", "-o", work / "uninstalled", *flags)
    check_output(run(work / "uninstalled", env=uninstalled))

    runtime = work / "runtime"
    run(meson, "install", "-C", build_dir, "--no-rebuild", "--destdir", runtime, "--tags", "runtime")
    files = sorted(path.name for path in runtime.rglob("*") if not path.is_dir())
    assert files and all(name.startswith("libstagehand.so.") for name in files), files
    print("installed:", *sorted(names))


def main():
    meson, source_dir, build_dir = sys.argv[1], pathlib.Path(sys.argv[2]), pathlib.Path(sys.argv[3])
    work = pathlib.Path(tempfile.mkdtemp(prefix="stagehand-install-"))
    try:
        installed(meson, source_dir, build_dir, work)
    finally:
        shutil.rmtree(work, ignore_errors=True)


if __name__ == "__main__":
    main()
