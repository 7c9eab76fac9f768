"""The library that the package loads."""

import pathlib
import shutil
import subprocess
import sys

import pytest

import libstagehand as sh

PACKAGED = pathlib.Path(sh.__file__).parent / "libstagehand.so.0"

LOADED = """
import libstagehand as sh
print(*sorted({line.split()[-1] for line in open("/proc/self/maps") if "libstagehand.so" in line}), sep="\\n")
with sh.Device("host"):
    pass
"""


@pytest.fixture
def other(tmp_path, monkeypatch):
    """A folder with another library of that name, which LD_LIBRARY_PATH has first."""
    folder = tmp_path / "other"
    folder.mkdir()
    monkeypatch.setenv("LD_LIBRARY_PATH", str(folder))
    return folder


@pytest.mark.skipif(not PACKAGED.exists(), reason="the package uses the library of the system")
def test_the_package_loads_its_own_library(program, other):
    shutil.copy(PACKAGED.resolve(), other / PACKAGED.name)
    assert program(LOADED).splitlines() == [str(PACKAGED.resolve())]


@pytest.mark.skipif(not PACKAGED.exists(), reason="the package uses the library of the system")
def test_a_file_that_is_no_library_is_passed_over(program, other):
    (other / PACKAGED.name).write_bytes(b"no library")
    assert program(LOADED).splitlines() == [str(PACKAGED.resolve())]


@pytest.mark.skipif(not PACKAGED.exists(), reason="the package uses the library of the system")
def test_a_package_without_a_library_takes_that_of_the_system(tmp_path, other):
    site = tmp_path / "site/libstagehand"
    shutil.copytree(PACKAGED.parent, site, ignore=shutil.ignore_patterns("libstagehand.so*", "torch", "spi-*"))
    shutil.copy(PACKAGED.resolve(), other / PACKAGED.name)
    done = subprocess.run([sys.executable, "-c", LOADED], capture_output=True, text=True, cwd=site.parent, timeout=60)
    assert (done.stdout.splitlines(), done.stderr) == ([str(other / PACKAGED.name)], "")
