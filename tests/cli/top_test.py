"""`stagehand top`, on a process that streams on the host device."""

import fcntl
import json
import os
import pathlib
import pty
import re
import select
import shutil
import signal
import socket
import struct
import subprocess
import tempfile
import termios
import unittest

import harness
from harness import COMMAND, DEADLINE_S, DEVICE, INTERRUPTED, OUTPUT, SUCCESS, USAGE, CommandTest

STREAMER = os.environ["STAGEHAND_STREAMER"]


def http(body, status="200 OK"):
    return f"HTTP/1.0 {status}\r\n\r\n".encode() + body


@unittest.skipUnless("STAGEHAND_CONTROL_PATH" in os.environ, "the control is not built")
class TopTest(CommandTest):
    def setUp(self):
        super().setUp()
        self.environment["STAGEHAND_BACKEND_PATH"] = os.environ["STAGEHAND_CONTROL_PATH"]
        # Paths of sockets must be short. This folder has no sockets of other processes.
        self.sockets = pathlib.Path(tempfile.mkdtemp(prefix="sh-", dir="/tmp"))
        self.addCleanup(shutil.rmtree, self.sockets)
        self.environment["XDG_RUNTIME_DIR"] = str(self.sockets)

    def engine(self, monitor="1"):
        """Starts a process that answers at `monitor`. tell() sends it commands."""
        environment = self.environment | ({"STAGEHAND_MONITOR": monitor} if monitor else {})
        process = subprocess.Popen(
            [STREAMER],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=environment,
            cwd=self.folder,
        )
        self.addCleanup(self.end, process)
        self.assertEqual(json.loads(process.stdout.readline()), "ready")
        return process

    @staticmethod
    def answer_once(listening, answer):
        connection, _ = listening.accept()
        with connection:
            connection.recv(4096)
            connection.sendall(answer)

    def end(self, process):
        """Ends the process normally, and returns its exit code."""
        process.stdin.close()
        code = process.wait(DEADLINE_S)
        process.stdout.close()
        process.stderr.close()
        return code

    def tell(self, process, line):
        process.stdin.write(line.encode() + b"\n")
        process.stdin.flush()
        return None if line == "stream" else json.loads(process.stdout.readline())

    def socket_of(self, process):
        return self.sockets / "stagehand" / f"{process.pid}.sock"

    def top(self, *arguments, interval=0.1):
        return self.succeed("top", "--interval", interval, *arguments)

    def sample(self, *arguments, interval=0.1):
        lines = self.top("--once", "--json", *arguments, interval=interval).out.splitlines()
        self.assertEqual(len(lines), 1)
        return json.loads(lines[0])

    def row(self, text, name):
        """Returns the cells of the row that begins with `name`."""
        rows = [line for line in text.splitlines() if line.startswith(name)]
        self.assertEqual(len(rows), 1, text)
        return re.split(r"\s{2,}", rows[0].strip())

    def assert_same(self, told, figures):
        for name, value in figures.items():
            if name != "runtimes":
                self.assertEqual(told[name], value, name)

    def test_what_it_says_is_what_the_process_says(self):
        engine = self.engine()
        figures = self.tell(engine, "step 5")
        told = self.sample()
        self.assertEqual(told["version"], 1)
        self.assertEqual(told["pid"], engine.pid)
        self.assertEqual(told["program"], pathlib.Path(STREAMER).name)
        self.assertEqual(told["busy"], 0)
        self.assertGreaterEqual(
            told["interval_seconds"], 0.05
        )  # of 0.1: a sample may be late, and the next one on time
        (device,) = told["devices"]
        self.assertEqual(device["name"], "host:0")
        self.assertEqual(device["link_bytes_per_second"], 100_000_000)
        self.assert_same(device, figures)
        self.assertEqual(device["reserved_bytes"], 48 * 4096)
        self.assertEqual(device["guest_bytes"], 36 * 4096)
        self.assertEqual(device["bytes_to_device_per_second"], 0)
        self.assertEqual(
            [runtime["name"] for runtime in device["runtimes"]], ["denoiser", 'text "encoder"\x1b[31m\n', "visitor"]
        )
        for runtime, own in zip(device["runtimes"], figures["runtimes"]):
            self.assert_same(runtime, own)
            self.assertEqual(runtime["steps"], 5)
            # Nothing happens.
            for rate in ("steps", "hits", "misses", "bytes_to_device", "stalls"):
                self.assertEqual(runtime[rate + "_per_second"], 0, rate)
            for share in ("link_share", "stall_share"):
                self.assertEqual(runtime[share], 0, share)
        self.assertGreater(sum(own["bytes_to_device"] for own in figures["runtimes"]), 0)

    def test_sets_have_a_table_of_their_own(self):
        engine = self.engine()
        self.tell(engine, "step 2")
        self.assertNotIn("evictions/s", self.top("--once").out)
        self.assertNotIn("sets", self.sample()["devices"][0]["runtimes"][0])
        self.tell(engine, "experts 3")
        (told,) = self.sample()["devices"][0]["runtimes"][0]["sets"]
        self.assertEqual(
            told,
            {
                "name": "experts",
                "members": 6,
                "slots": 2,
                "stride": 4096,
                "uses": 6,
                "hits": 0,
                "evictions": 4,
                "group_uses": [2, 2, 2],
                "group_hits": [0, 0, 0],
            },
        )
        text = self.top("--once").out
        self.assertEqual(self.row(text, "set ")[1:], ["runtime", "slots", "members", "uses/s", "hits", "evictions/s"])
        self.assertEqual(self.row(text, "experts"), ["experts", "denoiser", "2", "6", "0.0", "-", "0.0"])

    def test_table_says_the_same(self):
        engine = self.engine()
        figures = self.tell(engine, "step 5")
        text = self.top("--once").out
        self.assertNotIn("\x1b", text)

        def size(value):
            """Writes a size in three digits, like sizes below one MiB."""
            self.assertLess(value, 1000 << 10)
            kib = value / 1024
            return f"{kib:.{2 if kib < 10 else 1 if kib < 100 else 0}f} KiB" if value else "0 B"

        def figure(name):
            return size(figures[name])

        self.assertIn(f"process {engine.pid}, libstagehand ", text)
        self.assertIn("1 device, 3 runtimes", text)
        self.assertEqual(
            self.row(text, "device")[1:],
            ["budget", "used", "free", "reserved", "guests", "protected", "headroom", "link", "in use", "of it"],
        )
        row = self.row(text, "host:0")
        self.assertEqual(row[1:3], [figure("budget_bytes"), figure("used_bytes")])
        self.assertEqual(
            row[4:],
            [
                figure("reserved_bytes"),
                figure("guest_bytes"),
                figure("protected_bytes"),
                figure("headroom_bytes"),
                "100 MB/s",
                "0 B/s",
                "0 %",
            ],
        )
        self.assertEqual(
            "|".join(self.row(text, "runtime")[1:]),
            "device|steps/s|link|of it|stalled|held|share|resident|ring|unordered|protected|reserved|guest|given up|"
            "stalls/s|hits/s|misses/s",
        )
        # The name of the second runtime would colour the terminal.
        for name, own in zip(("denoiser", r'text "encoder"\x1b[31m\x0a', "visitor"), figures["runtimes"]):
            self.assertEqual(
                self.row(text, name)[1:],
                [
                    "host:0",
                    "0.0",
                    "0 B/s",
                    "0 %",
                    "0 %",
                    *(
                        size(own[part + "_bytes"])
                        for part in "held share resident ring unordered protected reserved guest given_up".split()
                    ),
                    "0.0",
                    "0.0",
                    "0.0",
                ],
            )

    def test_rates_are_of_what_happens(self):
        engine = self.engine()
        self.tell(engine, "step 2")
        self.tell(engine, "stream")
        samples = [self.sample(interval=0.5) for _ in range(2)]
        # A busy machine may need some time for a step.
        moving = set()
        while len(moving) < 3:
            samples.append(self.sample())
            moving.update(
                runtime["name"] for runtime in samples[-1]["devices"][0]["runtimes"] if runtime["steps_per_second"]
            )
        lines = subprocess.Popen(
            [COMMAND, "top", "--json", "--interval", "0.2"], stdout=subprocess.PIPE, env=self.environment
        )
        # Each sample is written at once, not when a buffer is full.
        first = b""
        while b"\n" not in first:
            first += os.read(lines.stdout.fileno(), 65536)
        self.assertEqual(first.find(b"\n"), len(first) - 1)
        samples += [json.loads(first), *(json.loads(lines.stdout.readline()) for _ in range(2))]
        while samples[-2]["busy"] + samples[-1]["busy"] > 0 or len(samples[-1]["devices"][0]["runtimes"]) < 3:
            samples.append(json.loads(lines.stdout.readline()))
        lines.terminate()
        lines.communicate()
        for sample in samples:
            (device,) = sample["devices"]
            total = 0
            for runtime in device["runtimes"]:
                # A busy machine may have skipped the runtime in the sample before.
                if runtime["steps_per_second"] is None:
                    continue
                # A step may be under way at either end.
                self.assertAlmostEqual(
                    runtime["hits_per_second"] + runtime["misses_per_second"],
                    8 * runtime["steps_per_second"],
                    delta=8.1 / sample["interval_seconds"] * 2,
                )
                self.assertAlmostEqual(runtime["link_share"], runtime["bytes_to_device_per_second"] / 1e8, places=6)
                total += runtime["bytes_to_device_per_second"]
            self.assertAlmostEqual(device["bytes_to_device_per_second"], total, delta=1)
            self.assertAlmostEqual(device["link_share"], total / 1e8, places=6)
        # The rates between two samples are the differences of their counters.
        first, last = (sample["devices"][0]["runtimes"][0] for sample in samples[-2:])
        seconds = (last["clock_ns"] - first["clock_ns"]) / 1e9
        self.assertAlmostEqual(last["steps_per_second"], (last["steps"] - first["steps"]) / seconds, places=6)
        self.assertAlmostEqual(last["stall_share"], (last["stall_ns"] - first["stall_ns"]) / 1e9 / seconds, places=6)
        self.assertEqual(self.tell(engine, "figures"), "streamed")

    def test_processes_are_found(self):
        line = self.refuse(DEVICE, "top", "--once", says=[self.sockets, "no process answers", "STAGEHAND_MONITOR=1"])
        engine = self.engine()
        self.assertEqual(self.sample(engine.pid)["pid"], engine.pid)
        self.assertEqual(self.sample(self.socket_of(engine))["pid"], engine.pid)
        self.assertEqual(self.sample()["pid"], engine.pid)
        other = self.engine()
        line = self.refuse(USAGE, "top", "--once", says=["2 processes answer", engine.pid, other.pid])
        self.assertEqual(self.sample(other.pid)["pid"], other.pid)
        # The socket of an ended process counts for nothing.
        other.kill()
        other.wait()
        self.assertTrue(self.socket_of(other).exists())
        self.assertEqual(self.sample()["pid"], engine.pid)
        line = self.refuse(DEVICE, "top", "--once", self.socket_of(other))
        self.assertRegex(line, "does not answer any more|has ended")
        self.refuse(DEVICE, "top", "--once", other.pid, says=[f"there is no process {other.pid}"])
        silent = self.engine(monitor=None)
        self.refuse(
            DEVICE, "top", "--once", silent.pid, says=[f"process {silent.pid} does not answer", "STAGEHAND_MONITOR=1"]
        )

    def test_paths_that_are_no_sockets(self):
        (self.folder / "file").write_text("")
        self.refuse(DEVICE, "top", "--once", self.folder / "file", says=["neither a process id nor a socket"])
        self.refuse(DEVICE, "top", "--once", self.folder / "nothing", says=["nothing", "No such file"])
        self.refuse(DEVICE, "top", "--once", "a\x1b[31mb", says=["No such file"])

    def test_mistakes_are_named(self):
        for interval in ("0", "-1", "nan", "soon", "1e300"):
            self.refuse(USAGE, "top", "--interval", interval, says=[f"'{interval}'", "0.05"])
        self.refuse(USAGE, "top", "1", "2", says=["2"])

    def test_variable_starts_it_where_it_says(self):
        path = self.sockets / "own"
        engine = self.engine(monitor=str(path))
        self.assertEqual(path.stat().st_mode & 0o777, 0o600)
        self.assertEqual(self.sample(path)["pid"], engine.pid)
        self.assertFalse((self.sockets / "stagehand").exists())
        # A process removes its socket when it exits. The socket of a killed process is replaced.
        self.assertEqual(self.end(engine), 0)
        self.assertFalse(path.exists())
        engine = self.engine(monitor=str(path))
        engine.kill()
        engine.wait()
        self.assertTrue(path.exists())
        engine = self.engine(monitor=str(path))
        self.assertEqual(self.sample(path)["pid"], engine.pid)

    def test_variable_that_cannot_be_followed_is_a_warning(self):
        (self.folder / "file").write_text("precious")
        self.environment["STAGEHAND_LOG"] = "warning"
        engine = self.engine(monitor=str(self.folder / "file"))
        self.tell(engine, "step 1")
        engine.stdin.close()
        self.assertIn(b"STAGEHAND_MONITOR", engine.stderr.read())
        self.assertEqual(engine.wait(DEADLINE_S), 0)
        self.assertEqual((self.folder / "file").read_text(), "precious")

    def test_end_of_the_process_is_told(self):
        engine = self.engine()
        self.tell(engine, "step 1")
        watching = self.start("top", "--json", "--interval", "0.05")
        self.wait_for_line(watching, '"version"')
        watching.send_signal(signal.SIGSTOP)  # a process that ends stops to answer before
        self.end(engine)
        watching.send_signal(signal.SIGCONT)
        result = self.finish(watching)
        self.assertEqual(result.code, SUCCESS, result.err)
        self.assertEqual(
            result.err, f"stagehand top: process {engine.pid} ({pathlib.Path(STREAMER).name[:15]}) has ended\n"
        )
        for line in result.out.splitlines():
            self.assertEqual(json.loads(line)["pid"], engine.pid)

    def test_end_of_the_answers_is_told(self):
        engine, place = self.engine(monitor=None), self.sockets / "place"
        self.assertEqual(self.tell(engine, f"start {place}"), "started")
        watching = self.start("top", place, "--interval", "0.05")
        self.wait_for_line(watching, "misses/s")
        self.assertEqual(self.tell(engine, "stop"), "stopped")
        result = self.finish(watching)
        self.assertEqual((result.code, "does not answer any more" in result.err), (SUCCESS, True), result.err)
        self.assertEqual(self.tell(engine, f"start {place}"), "started")
        self.assertEqual(self.sample(place)["pid"], engine.pid)

    def test_process_that_does_not_answer_in_time(self):
        engine = self.engine()
        engine.send_signal(signal.SIGSTOP)
        self.addCleanup(engine.send_signal, signal.SIGCONT)
        self.refuse(DEVICE, "top", "--once", engine.pid, says=[f"process {engine.pid}", "does not answer"])
        engine.send_signal(signal.SIGCONT)
        self.assertEqual(self.sample(engine.pid)["pid"], engine.pid)

    def test_shares_above_the_link_are_explained(self):
        path = self.sockets / "scripted"
        device = {"name": "d", "link_bytes_per_second": 10**9}
        with socket.socket(socket.AF_UNIX) as listening:
            listening.bind(str(path))
            listening.listen(8)
            process = self.start("top", "--once", "--interval", "0.05", path)
            for second in (1, 2):
                device["runtimes"] = [{"id": 1, "clock_ns": second * 10**9, "bytes_to_device": second * 1_250_000_000}]
                document = {"version": 1, "pid": 5, "devices": [device]}
                self.answer_once(listening, http(json.dumps(document).encode() + b"\n"))
        self.assertRegex(
            self.finish(process).out, r" 125 %(?s:.*)\nMore than 100 % of the link: the link is faster than"
        )

    def test_what_is_not_libstagehand(self):
        path = self.sockets / "strange"
        with socket.socket(socket.AF_UNIX) as listening:
            listening.bind(str(path))
            listening.listen(8)
            for answer, says in [
                (b"hello\n", "not HTTP"),
                (http(b"hello\n"), "not a document"),
                (http(b"[]\n"), "not a document"),
                (http(b'{"version": 2}\n'), "version 2"),
                (http(b'{"version": 1, "devices": 5}\n'), "not a document"),
                (http(b'{"version": "x"}\n'), "not a document"),
                (http(b'{"version": 1, "devices": [{"runtimes": [{"steps": "many"}]}]}\n'), "not a document"),
                (http(b'{"error": "a \x1b[31m token"}\n', "401 Unauthorized"), "token"),
                (b"", "does not answer"),
                (http(b'{"version"'), "does not answer"),
            ]:
                with self.subTest(answer):
                    process = self.start("top", "--once", path)
                    # The command asks once more if the process closes the connection without an answer.
                    for _ in range(1 if answer.endswith(b"\n") else 2):
                        self.answer_once(listening, answer)
                    result = self.finish(process)
                    self.assertEqual(result.code, DEVICE, result.out + result.err)
                    self.assert_one_error(result, [says])
                    self.assertNotIn("\x1b", result.err)

    def test_reader_that_has_gone_is_noticed(self):
        self.engine()
        for arguments in (["--once"], ["--once", "--json"], []):
            reading, writing = os.pipe()
            os.close(reading)
            result = self.run_command("top", "--interval", "0.05", *arguments, stdout=writing)
            os.close(writing)
            self.assertEqual(result.code, OUTPUT, result.err)
            self.assert_one_error(result, ["standard output"])

    def test_signal_ends_it(self):
        self.engine()
        for number, code in ((signal.SIGINT, INTERRUPTED), (signal.SIGTERM, 143)):
            watching = self.start("top", "--json", "--interval", "0.5")
            self.wait_for_line(watching, "version")
            watching.send_signal(number)
            result = self.finish(watching)
            self.assertEqual(result.code, code)
            self.assertEqual(result.err, "")

    def on_terminal(self, *arguments, rows=30, columns=200):
        leader, follower = pty.openpty()
        self.addCleanup(os.close, leader)
        fcntl.ioctl(follower, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
        self.environment.update({"TERM": "xterm", "LC_ALL": "C.UTF-8"})
        before = termios.tcgetattr(follower)
        process = subprocess.Popen(
            [COMMAND, "top", *map(str, arguments)],
            stdin=follower,
            stdout=follower,
            stderr=subprocess.PIPE,
            env=self.environment,
            cwd=self.folder,
        )
        self.addCleanup(process.stderr.close)
        self.addCleanup(os.close, follower)
        return process, leader, lambda: self.assertEqual(termios.tcgetattr(follower), before)

    ENTER, LEAVE = b"\x1b[?1049h\x1b[?25l", b"\x1b[?25h\x1b[?1049l"

    def read_until(self, leader, text):
        shown = b""
        while text not in shown:
            ready, _, _ = select.select([leader], [], [], DEADLINE_S)
            self.assertTrue(ready, shown)
            shown += os.read(leader, 65536)
        return shown

    def test_terminal_is_given_back(self):
        engine = self.engine()
        self.tell(engine, "step 1")
        for how in ("interrupt", "terminate", "q", "end"):
            with self.subTest(how):
                process, leader, check_modes = self.on_terminal("--interval", "0.1")
                shown = self.read_until(leader, b"visitor")
                self.assertTrue(shown.startswith(self.ENTER), shown[:60])
                self.assertNotIn(self.LEAVE, shown)
                if how == "q":
                    os.write(leader, b"q")
                elif how == "end":
                    engine.kill()
                    engine.wait()
                else:
                    process.send_signal(signal.SIGINT if how == "interrupt" else signal.SIGTERM)
                shown = self.read_until(leader, self.LEAVE)
                self.assertTrue(shown.endswith(self.LEAVE), shown[-60:])
                self.assertEqual(
                    process.wait(DEADLINE_S), {"interrupt": INTERRUPTED, "terminate": 143}.get(how, SUCCESS)
                )
                self.assertEqual("has ended" in process.stderr.read().decode(), how == "end")
                check_modes()

    def test_page_is_cut_to_the_terminal(self):
        self.engine()
        process, leader, _ = self.on_terminal("--interval", "0.1", rows=6, columns=40)
        self.read_until(leader, b"host:0")
        page = self.read_until(leader, b"\x1b[J")
        os.write(leader, b"q")
        self.read_until(leader, self.LEAVE)
        process.wait(DEADLINE_S)
        text = re.sub(rb"\x1b\[[0-9;?]*[A-Za-z]", b"", page.split(b"\x1b[H")[-1])
        lines = text.decode().split("\r\n")
        self.assertLessEqual(len(lines), 6)
        for line in lines:
            self.assertLessEqual(len(line.strip("\r\n")), 40, line)

    def test_process_that_stops_answering_is_waited_for_on_a_terminal(self):
        engine = self.engine()
        process, leader, _ = self.on_terminal("--interval", "0.1")
        self.read_until(leader, b"visitor")
        engine.send_signal(signal.SIGSTOP)
        self.addCleanup(engine.send_signal, signal.SIGCONT)
        self.read_until(leader, b"does not answer")
        engine.send_signal(signal.SIGCONT)
        self.read_until(leader, b"\x1b[H\x1b[1m")  # the page begins with the program's name again
        os.write(leader, b"q")
        self.read_until(leader, self.LEAVE)
        self.assertEqual(process.wait(DEADLINE_S), SUCCESS)


if __name__ == "__main__":
    harness.main()
