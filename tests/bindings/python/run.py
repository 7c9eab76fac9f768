"""Tests of the finished Python package, which is the wheel that ./dev has built. They are skipped, with the reason, if
there is no wheel.

run.py package ROOT BUILD
    the tests of this folder
run.py types ROOT BUILD
    mypy --strict over the package and the examples
run.py format ROOT BUILD
    every Python file is laid out as ruff does it
run.py readme ROOT BUILD
    the wheel in an empty environment, with the examples of the README files
run.py system ROOT BUILD
    the package on a library that is not in it, built from the source distribution, and with the same examples
run.py torch ROOT BUILD
    libstagehand.torch, with the PyTorch of STAGEHAND_TORCH_PYTHON (a Python with it), of ./dev torch, or of this
    Python; skipped if STAGEHAND_TORCH is `later`, because `./dev torch` runs it then
run.py torch-all ROOT BUILD
    the same with the tests that take long: all samples of all operators, in STAGEHAND_TEST_ALL
run.py torch-types ROOT BUILD
    mypy --strict over libstagehand.torch, with that PyTorch
run.py tutorial ROOT BUILD PAGE
    follows a page of docs/tutorials with the package
run.py example ROOT BUILD PROGRAM...
    runs a program with the package
"""

import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile

WHAT, ROOT, BUILD = sys.argv[1], pathlib.Path(sys.argv[2]), pathlib.Path(sys.argv[3])
VENV, WHEELS = ROOT / ".cache/venv-python", ROOT / ".cache/wheels/python"
HERE = ROOT / "tests/bindings/python"
MOST_WORKERS = 8  # of PyTorch's tests; each takes 1.5 GB


def run(*command, **variables):
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("STAGEHAND_", "PYTHON"))}
    environment.update(variables, PYTHONDONTWRITEBYTECODE="1")
    done = subprocess.run(
        [str(word) for word in command], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment
    )
    print(done.stdout, end="")
    if done.returncode != 0:
        sys.exit(f"{' '.join(str(word) for word in command)}: exit status {done.returncode}")
    return done.stdout


def wheel():
    found = list((BUILD / "wheels").glob("libstagehand-*.whl"))
    if not found:
        print("there is no wheel in build/wheels: ./dev test builds one where it can get Python packages")
        sys.exit(77)
    assert len(found) == 1, found
    return found[0]


def unpacked(folder, file=None):
    """The package as an installation has it, in a folder for PYTHONPATH."""
    with zipfile.ZipFile(file or wheel()) as archive:
        archive.extractall(folder)
    return str(folder)


def tested(python, *arguments, **variables):
    """Runs tests, which tell why they skip what they skip."""
    run(python, *"-X faulthandler -m pytest -q -rs -p no:cacheprovider".split(), *arguments, **variables)


def package(work):
    plugin = BUILD / "tests/graphs/stagehand-capture.so"
    tested(
        VENV / "bin/python",
        f"--ignore={HERE / 'torch'}",
        HERE,
        PYTHONPATH=unpacked(work),
        CAPTURE_BACKEND=str(plugin if plugin.exists() else ""),
    )


MYPY = "--strict --python-version 3.11 --cache-dir".split()


def types(work):
    site = unpacked(work)
    mypy = [VENV / "bin/mypy", *MYPY, work / "cache"]
    run(*mypy, "-p", "libstagehand", MYPYPATH=site)
    for example in sorted((ROOT / "examples").glob("*/*.py")):
        run(*mypy, example, MYPYPATH=site)


def layout(_):
    ruff = VENV / "bin/ruff"
    if not ruff.exists():
        print("there is no ruff: ./dev test fetches it where it can get Python packages")
        sys.exit(77)
    run(ruff, "format", "--check", "--no-cache", ROOT)


def has_modules(python, *modules):
    look = f"import importlib.util, sys; sys.exit(any(importlib.util.find_spec(name) is None for name in {modules}))"
    return subprocess.run([python, "-c", look], cwd="/").returncode == 0


def torch_python(*modules):
    """A Python with PyTorch, and with these."""
    wanted = ["torch", "cffi", *modules]
    asked = os.environ.get("STAGEHAND_TORCH_PYTHON")
    for python in [asked] if asked else [str(ROOT / ".cache/venv-torch/bin/python"), sys.executable]:
        if shutil.which(python) and has_modules(python, *wanted):
            return python
    print(f"no Python here has {', '.join(wanted)}: ./dev torch fetches them, or STAGEHAND_TORCH_PYTHON names one")
    sys.exit(77)


def torch(work):
    if os.environ.get("STAGEHAND_TORCH") == "later":
        print("./dev torch runs it")
        sys.exit(77)
    site = unpacked(work)
    python = torch_python("pytest")
    plugin, command = BUILD / "backends/fault/stagehand-fault.so", BUILD / "cli/stagehand"
    tested(
        python,
        "--import-mode=importlib",
        *torch_workers(python),
        HERE / "torch",
        PYTHONPATH=site,
        FAULT_BACKEND=str(plugin if plugin.exists() else ""),
        STAGEHAND_COMMAND=str(command if command.exists() else ""),
        STAGEHAND_TEST_ALL="1" if WHAT == "torch-all" else "",
    )


def torch_workers(python):
    """A process for each core, up to a number whose memory suffices. The tests that `xdist_group` puts together run in
    one of them. A Python without pytest-xdist runs all tests in one process.
    """
    count = min(len(os.sched_getaffinity(0)), MOST_WORKERS)
    # A process that crashes ends the run: the others would wait for its tests for ever.
    return (
        ["-n", count, "--dist", "loadgroup", "--max-worker-restart", "0"]
        if count > 1 and has_modules(python, "xdist")
        else []
    )


def torch_types(work):
    site = unpacked(work)
    run(torch_python("mypy"), "-m", "mypy", *MYPY, work / "cache", "-p", "libstagehand", MYPYPATH=site)


def readme(work):
    file = wheel()
    names = zipfile.ZipFile(file).namelist()
    parts = {"libstagehand.so.0", "py.typed", "torch/_reader.abi3.so"}
    assert "-abi3-" in file.name and {f"libstagehand/{part}" for part in parts} <= set(names), names
    assert not any("fault" in name or name.endswith((".h", ".pc")) for name in names), names
    assert file.stat().st_size < 10 << 20, f"{file.name} has {file.stat().st_size} bytes"
    with zipfile.ZipFile(file) as archive:
        about = archive.read(next(name for name in names if name.endswith(".dist-info/METADATA"))).decode()
    assert "Provides-Extra: torch" in about and "License-Expression: Apache-2.0" in about, about
    check_platform(file)
    readme_examples(empty_environment(work, file), work)


def check_platform(file):
    """The name of the wheel tells which systems it serves, and the wheel links no library that they may lack."""
    told = run(VENV / "bin/auditwheel", "show", file)
    if "linux_x86_64" in file.name.replace("manylinux", ""):
        return  # the compiler of this machine has no static C++ library
    (tag,) = re.findall(r"manylinux_2_\d+_x86_64", file.name)
    assert f'"{tag}"' in told, told
    libraries = set(re.findall(r"(\S+\.so\.\d+) with versions", told))
    glibc = {"libc.so.6", "libm.so.6", "libpthread.so.0", "libdl.so.2", "ld-linux-x86-64.so.2"}
    assert libraries <= glibc | {"libgcc_s.so.1", "libstagehand.so.0"}, libraries


def empty_environment(work, file):
    """Its Python, with this wheel and what the wheel asks for."""
    run(VENV / "bin/python", "-m", "venv", work / "empty")
    python = work / "empty/bin/python"
    run(python, "-m", "pip", "install", "-q", "--disable-pip-version-check", "--no-index", "--find-links", WHEELS, file)
    return python


def readme_examples(python, work, **variables):
    for path in (ROOT / "README.md", ROOT / "bindings/python/README.md"):
        examples = re.findall(r"^```python\n(.*?)^```", path.read_text(), flags=re.S | re.M)
        assert len(examples) == 1 and len(examples[0].splitlines()) <= 20, (
            f"{path} has {len(examples)} examples in Python"
        )
        (work / "example.py").write_text(examples[0])
        lines = run(python, work / "example.py", **variables).splitlines()
        assert len(lines) == 25 and lines[0].startswith("step 0 layer 0 at 0x") and lines[23].endswith(": 7"), lines
        assert lines[24] == f"{2 << 20} bytes of the device at most, of {8 << 20}", lines[24]


def source_distribution(work, path):
    """Of what is in the working tree; Meson takes what is committed, so this is committed elsewhere."""
    listed = subprocess.run(
        ["git", "-C", ROOT, "ls-files", "-zco", "--exclude-standard"], capture_output=True, text=True
    )
    if listed.returncode != 0:
        return ROOT  # no repository: it is one that was unpacked
    for name in filter(None, listed.stdout.split("\0")):
        if (ROOT / name).is_file():
            (work / "tree" / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, work / "tree" / name)
    who = "-c user.name=tests -c user.email=tests@localhost -c core.hooksPath=/dev/null".split()
    git = ["git", "-C", work / "tree", *who]
    for command in (["init", "-q"], ["add", "-A"], ["commit", "-q", "--no-gpg-sign", "-m", "tree"]):
        run(*git, *command)
    build = f"import os, mesonpy; os.chdir({str(work / 'tree')!r}); mesonpy.build_sdist({str(work)!r})"
    run(VENV / "bin/python", "-c", build, PATH=path)
    (file,) = work.glob("libstagehand-*.tar.gz")
    return file


def system(work):
    wheel()
    (work / "wheels").mkdir()
    path = f"{VENV / 'bin'}:{os.environ['PATH']}"
    source = source_distribution(work, path)
    pip = [VENV / "bin/python", *"-m pip wheel -q --disable-pip-version-check --no-build-isolation --no-deps".split()]
    options = ["-w", work / "wheels", "-Csetup-args=-Dpython=system"]
    run(*pip, source, *options, PKG_CONFIG_PATH=str(BUILD / "meson-uninstalled"), PATH=path)
    (file,) = (work / "wheels").iterdir()
    names = zipfile.ZipFile(file).namelist()
    assert not any(".so." in name or "spi-" in name for name in names) and any("/_reader." in name for name in names)
    out = run(
        VENV / "bin/python",
        "-c",
        "import libstagehand as sh; sh.Device('host'); print(open('/proc/self/maps').read())",
        PYTHONPATH=unpacked(work / "site", file),
        LD_LIBRARY_PATH=str(BUILD / "lib"),
    )
    assert str(BUILD / "lib/libstagehand.so.0") in out
    python = empty_environment(work, file)
    readme_examples(python, work, LD_LIBRARY_PATH=str(BUILD / "lib"))


def tutorial(work):
    follow = ROOT / "tests/tutorials/page.py"
    run(sys.executable, follow, sys.argv[4], BUILD, VENV / "bin/python", unpacked(work))


def example(work):
    done = subprocess.run([VENV / "bin/python", *sys.argv[4:]], env=dict(os.environ, PYTHONPATH=unpacked(work)))
    if done.returncode != 0:
        sys.exit(done.returncode)


def main():
    work = pathlib.Path(tempfile.mkdtemp(prefix="stagehand-python-"))
    try:
        {
            "package": package,
            "types": types,
            "format": layout,
            "readme": readme,
            "system": system,
            "tutorial": tutorial,
            "example": example,
            "torch": torch,
            "torch-all": torch,
            "torch-types": torch_types,
        }[WHAT](work)
    finally:
        shutil.rmtree(work, ignore_errors=True)


if __name__ == "__main__":
    main()
