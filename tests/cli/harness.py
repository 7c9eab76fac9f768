"""Runs the real command. The environment variable STAGEHAND_COMMAND holds its path."""

import fcntl
import json
import os
import pathlib
import pty
import signal
import struct
import subprocess
import sys
import tempfile
import termios
import time
import unittest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

import model_files  # noqa: E402  (needs the path)

COMMAND = os.environ["STAGEHAND_COMMAND"]
SOURCE_ROOT = pathlib.Path(__file__).resolve().parent.parent.parent

# The exit codes of the manual.
SUCCESS, FAILURE, USAGE, MODEL, DEVICE, OUTPUT, INTERRUPTED = 0, 1, 2, 3, 4, 5, 130

# No command here takes a minute. A command that hangs must not block the suite.
DEADLINE_S = 120


# As in tests/stress/scale.h: below 1, tests with very many cases run a part of them.
SCALE = float(os.environ.get("STAGEHAND_STRESS_SCALE", "1"))


def sample(cases):
    """Returns the cases that run, which are spread evenly. The first is always among them."""
    return [case for k, case in enumerate(cases) if k * 0.6180339887498949 % 1 < SCALE]


class Result:
    def __init__(self, code, out, err):
        self.code = code
        self.out = out
        self.err = err

    def json(self):
        return json.loads(self.out)


class CommandTest(unittest.TestCase):
    """Gives each test its own folder, and runs the command in it."""

    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="stagehand-cli-")
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.environment = {key: value for key, value in os.environ.items() if not key.startswith("STAGEHAND_")}
        for key in ("STAGEHAND_BACKEND_PATH", "STAGEHAND_ALLOW_DUPLICATE"):
            if key in os.environ:
                self.environment[key] = os.environ[key]

    def start(self, *arguments, **options):
        return subprocess.Popen(
            [COMMAND, *map(str, arguments)],
            stdout=options.pop("stdout", subprocess.PIPE),
            stderr=options.pop("stderr", subprocess.PIPE),
            stdin=subprocess.DEVNULL,
            env=self.environment,
            cwd=self.folder,
            **options,
        )

    def finish(self, process):
        try:
            out, err = process.communicate(timeout=DEADLINE_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()
            self.fail("the command hangs")
        result = Result(process.returncode, (out or b"").decode(), (err or b"").decode())
        self.assertGreaterEqual(result.code, 0, f"ended by signal {-result.code}: {result.err}")
        return result

    def run_command(self, *arguments, **options):
        return self.finish(self.start(*arguments, **options))

    def succeed(self, *arguments):
        result = self.run_command(*arguments)
        self.assertEqual(result.code, SUCCESS, result.err)
        self.assertEqual(result.err, "")
        return result

    def refuse(self, code, *arguments, says=()):
        """Runs a command that must fail with `code`. Returns its one line of standard error, which must hold `says`."""
        result = self.run_command(*arguments)
        self.assertEqual(result.code, code, result.out + result.err)
        self.assert_one_error(result, says)
        self.assertEqual(result.out, "")
        return result.err

    def assert_one_error(self, result, says=()):
        lines = result.err.splitlines()
        self.assertEqual(len(lines), 1, result.err)
        self.assertRegex(lines[0], r"^stagehand( \w+)?: error: \S")
        for text in says:
            self.assertIn(str(text), lines[0])

    def layered_model(self, name="model.safetensors", layers=8, layer_bytes=1 << 20, table_bytes=4 << 20):
        return model_files.write_safetensors(
            self.folder / name, model_files.layered_tensors(layers, layer_bytes, table_bytes)
        )

    def wait_for_line(self, process, text):
        """Reads standard output until a line has `text`. Returns the text that was read."""
        seen = ""
        while text not in seen:
            line = process.stdout.readline().decode()
            if not line:
                self.fail(f"ended before {text!r}: {seen}{process.stderr.read().decode()}")
            seen += line
        return seen

    def wait_for_file(self, process, path, lines):
        deadline = time.monotonic() + DEADLINE_S
        while not (path.exists() and path.read_bytes().count(b"\n") >= lines):
            if process.poll() is not None:
                self.fail(f"ended early: {process.stderr.read().decode()}")
            if time.monotonic() > deadline:
                process.send_signal(signal.SIGKILL)
                self.fail(f"{path} does not grow")
            time.sleep(0.01)

    def start_on_terminal(self, *arguments, columns=80, environment=()):
        """Starts the command with a terminal as standard error. Returns the process and the terminal's other end."""
        leader, follower = pty.openpty()
        self.addCleanup(os.close, leader)
        fcntl.ioctl(follower, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
        self.environment.pop("NO_COLOR", None)
        self.environment.update({"TERM": "xterm", "LC_ALL": "C.UTF-8"} | dict(environment))
        process = self.start(*arguments, stderr=follower)
        os.close(follower)
        return process, leader

    def wait_on_terminal(self, leader, text):
        """Reads the terminal until it shows `text`, or to its end if that is None; returns what it showed."""
        shown = b""
        while text is None or text not in shown:
            try:
                part = os.read(leader, 65536)
            except OSError:  # nobody has it open any more
                part = b""
            if not part:
                self.assertIsNone(text, shown)
                break
            shown += part
        return shown


def main():
    unittest.main(verbosity=2)
