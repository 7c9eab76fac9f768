"""Programs that use the interface of torch_memory_saver under its own name, or with the library in LD_PRELOAD."""

import os
import subprocess
import sys
import textwrap
import venv

import libstagehand as sh
from libstagehand.compat import torch_memory_saver as package


def run(text, **variables):
    """Runs a program with the preloaded library, and the host in the place of the GPU."""
    with package.configure_subprocess():
        environment = {**os.environ, **variables}
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(text)], env=environment, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.split()


PROGRAM = """
    import ctypes
    runtime = ctypes.CDLL(None)
    runtime.tms_stagehand_set_backend(b"host")
    runtime.cudaFree.argtypes = [ctypes.c_void_p]
    def malloc(size):
        memory = ctypes.c_void_p()
        print(runtime.cudaMalloc(ctypes.byref(memory), ctypes.c_size_t(size)))
        return memory.value
"""


def test_a_preloaded_library_takes_allocations():
    told = run(
        PROGRAM
        + """
    import libstagehand as sh
    first = malloc(4 << 20)
    runtime.tms_set_interesting_region(True)
    runtime.tms_set_enable_cpu_backup(True)
    runtime.tms_set_current_tag(b"weights")
    device = sh.Device("host")
    memory, small = malloc(4 << 20), malloc(100)
    malloc(0), malloc(1 << 50)
    ctypes.memset(memory, 9, 4 << 20)
    print(runtime.tms_pause(None), device.occupancy("weights").state.name, runtime.tms_pause(b"weights"))
    print(runtime.tms_resume(None), ctypes.string_at(memory, 4 << 20) == b"\\x09" * (4 << 20))
    print(runtime.cudaFree(memory), runtime.cudaFree(small), device.occupancy("weights").allocations)
    """
    )
    # Without CUDA's runtime, an allocation outside of a region fails.
    assert told[0] == "999" and told[1:5] == ["0", "0", "0", "2"]
    assert told[5:] == ["0", "RELEASED", str(int(sh.Status.ERROR_INVALID_STATE)), "0", "True", "0", "0", "0"]


def test_the_environment_enables_a_preloaded_library():
    told = run(
        PROGRAM
        + """
    import libstagehand as sh
    device = sh.Device("host")
    memory = malloc(4 << 20)
    print(runtime.tms_pause(None), device.occupancy("default").staged_bytes)
    """,
        TMS_INIT_ENABLE="1",
        TMS_INIT_ENABLE_CPU_BACKUP="true",
    )
    assert told == ["0", "0", str(4 << 20)]


def test_the_environment_says_whether_backups_are_kept():
    program = "import ctypes; print(ctypes.CDLL(None).tms_get_retain_cpu_backup() & 1)"
    assert run(program) == ["0"] and run(program, TMS_RETAIN_CPU_BACKUP="yes") == ["1"]


def test_an_import_of_torch_memory_saver_gives_this_package():
    told = run(
        """
    from libstagehand.compat import torch_memory_saver as ours
    ours.install()
    ours.install()
    import torch_memory_saver
    from torch_memory_saver import configure_subprocess, torch_memory_saver as saver
    from torch_memory_saver.utils import get_binary_path_from_package
    import torch_memory_saver.hooks.mode_preload, torch_memory_saver.binary_wrapper
    import torch_memory_saver.testing_utils
    print(torch_memory_saver is ours, saver is ours.torch_memory_saver)
    mode = torch_memory_saver.hooks.mode_preload
    print(mode.configure_subprocess is configure_subprocess is ours.configure_subprocess)
    print(torch_memory_saver.testing_utils is ours.testing_utils)
    """
    )
    assert told == ["True"] * 4
    told = run(
        """
    import sys, types
    sys.modules["torch_memory_saver"] = types.ModuleType("torch_memory_saver")
    sys.modules["torch_memory_saver"].__file__ = "/other"
    from libstagehand.compat import torch_memory_saver as ours
    try:
        ours.install()
    except RuntimeError as error:
        print("/other" in str(error))
    """
    )
    assert told == ["True"]


def test_a_package_of_the_name(tmp_path):
    """The wheel of libstagehand.compat.alias, in an environment of its own."""
    made = subprocess.run(
        [sys.executable, "-m", "libstagehand.compat.alias", tmp_path], capture_output=True, text=True, timeout=120
    )
    assert made.returncode == 0, made.stderr
    # Its Python sees the packages of this one. PYTHONPATH has libstagehand.
    environment = tmp_path / "environment"
    venv.create(environment, with_pip=False, symlinks=True)
    python = environment / "bin/python"
    install = [sys.executable, "-m", "pip", "--python", python, "install", "-q", "--no-deps", "--no-index"]
    done = subprocess.run([*install, made.stdout.strip()], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    paths = [*sys.path, os.environ.get("PYTHONPATH", "")]
    variables = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in paths if path)}
    program = """
        import importlib.metadata, os, pathlib, subprocess, sys
        import torch_memory_saver
        from torch_memory_saver import configure_subprocess, torch_memory_saver as saver
        import torch_memory_saver.hooks.mode_preload
        from torch_memory_saver.utils import get_binary_path_from_package
        from libstagehand.compat import torch_memory_saver as ours
        print(saver is ours.torch_memory_saver, torch_memory_saver.utils is ours.utils)
        print(importlib.metadata.version("torch_memory_saver"))
        folder = pathlib.Path(torch_memory_saver.__file__).parent.parent
        print(sorted(path.name for path in folder.glob("*.abi3.so") if "torch_memory_saver" in path.name))
        ours.install()
        import torch_memory_saver
        print(torch_memory_saver is ours)
    """
    done = subprocess.run(
        [python, "-c", textwrap.dedent(program)], env=variables, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    same, version, files, installed = done.stdout.splitlines()
    assert same == "True True" and version == "0.0.10+libstagehand" and installed == "True"
    names = [f"torch_memory_saver_hook_mode_{mode}" for mode in ("preload", "torch")]
    assert files == str(sorted(f"{name}{suffix}.abi3.so" for name in names for suffix in ("", "_cu12", "_cu13")))
