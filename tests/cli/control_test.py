"""`stagehand release` and `stagehand resume`, and the examples of docs/control.md, on a process that has a control."""

import json
import os
import pathlib
import re
import shutil
import signal
import socket
import subprocess
import tempfile
import threading
import time
import unittest

import harness
from harness import COMMAND, DEADLINE_S, DEVICE, FAILURE, INTERRUPTED, SOURCE_ROOT, SUCCESS, USAGE, CommandTest

OCCUPANT = os.environ["STAGEHAND_OCCUPANT"]
TOKEN = "token-of-the-tests"


@unittest.skipUnless("STAGEHAND_CONTROL_PATH" in os.environ, "the control is not built")
class ControlTest(CommandTest):
    def setUp(self):
        super().setUp()
        self.sockets = pathlib.Path(tempfile.mkdtemp(prefix="sh-", dir="/tmp"))
        self.addCleanup(shutil.rmtree, self.sockets)
        self.environment["XDG_RUNTIME_DIR"] = str(self.sockets)
        self.environment["STAGEHAND_BACKEND_PATH"] = os.environ["STAGEHAND_CONTROL_PATH"]

    def engine(self, *start):
        """Starts a process with a control. tell() sends it commands."""
        process = subprocess.Popen(
            [OCCUPANT], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=self.environment, cwd=self.folder
        )
        self.addCleanup(self.end, process)
        self.assertEqual(json.loads(process.stdout.readline()), "ready")
        if start != (None,):
            self.address = self.tell(process, " ".join(("start",) + start))["address"]
        return process

    def end(self, process):
        process.stdin.close()
        try:
            process.wait(DEADLINE_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        process.stdout.close()

    def tell(self, process, line):
        process.stdin.write(line.encode() + b"\n")
        process.stdin.flush()
        return json.loads(process.stdout.readline())

    def test_by_process_id(self):
        engine = self.engine()
        self.assertEqual(self.address, f"{self.sockets}/stagehand/{engine.pid}.host:0.control")
        self.assertIn("released 2 tags, 10.0 MiB of device memory", self.succeed("release", engine.pid).out)
        self.assertEqual(self.tell(engine, "check"), "released")
        self.assertEqual(self.succeed("release", engine.pid).out, "nothing to do: everything is released already\n")
        self.assertIn("resumed 1 tag, 6.00 MiB", self.succeed("resume", engine.pid, "--tag", "weights").out)
        self.assertEqual(self.tell(engine, "check"), "whole")
        self.assertIn("resumed 1 tag, 4.00 MiB", self.succeed("resume", engine.pid).out)
        self.assertEqual(self.succeed("resume", engine.pid).out, "nothing to do: nothing is released\n")

    def test_the_trace_shows_it(self):
        self.environment["STAGEHAND_TRACE"] = str(self.folder / "trace")
        engine = self.engine()
        self.succeed("release", engine.pid)
        self.succeed("release", engine.pid)  # changes nothing
        self.succeed("resume", engine.pid, "--tag", "weights")
        engine.stdin.close()
        engine.wait(DEADLINE_S)
        events = json.loads((self.folder / "trace").read_text())["traceEvents"]
        slices = [event for event in events if event["ph"] == "X"]
        self.assertEqual([event["name"] for event in slices], ["pause kv_cache, weights", "resume weights"])
        self.assertEqual(slices[0]["args"], {"device bytes": 10 << 20, "copied bytes": 6 << 20})
        self.assertEqual(slices[1]["args"], {"device bytes": 6 << 20, "copied bytes": 6 << 20})
        names = {event["args"]["name"] for event in events if event["name"] == "process_name"}
        self.assertTrue(any("host:0" in name for name in names), names)

    def test_other_ways_to_name_it(self):
        engine = self.engine()
        for arguments in ([], [self.address], ["--socket", self.address], ["--device", "host:0"]):
            told = self.succeed("release", "--json", *arguments).json()
            self.assertEqual((told["success"], told["changed"], told["tag_count"]), (True, True, 2), arguments)
            self.succeed("resume", *arguments)
        self.assertEqual(self.tell(engine, "check"), "whole")

    def test_contents_are_lost_only_on_demand(self):
        engine = self.engine()
        told = self.succeed("release", "--drop", "--json").json()
        self.assertEqual(told["copied_bytes"], 0)
        self.succeed("resume")
        self.assertEqual(self.tell(engine, "check"), "changed")

    def test_nobody_is_there(self):
        self.refuse(DEVICE, "release", says=["no process answers", str(self.sockets), "sh_control_start()"])
        self.refuse(DEVICE, "release", "--socket", self.folder / "none", says=["none", "nobody listens"])
        self.refuse(DEVICE, "release", self.folder / "none", says=["none", "No such file"])
        self.refuse(DEVICE, "resume", "999999999", says=["there is no process 999999999"])
        engine = self.engine(None)
        self.refuse(DEVICE, "release", engine.pid, says=[f"process {engine.pid} does not answer", "sh_control_start()"])
        path = self.tell(engine, "start")["address"]
        self.refuse(DEVICE, "release", "--device", "cuda:7", says=["cuda:7"])
        engine.kill()
        engine.wait()
        self.assertTrue(pathlib.Path(path).exists(), "a killed process leaves its socket")
        self.refuse(DEVICE, "release", "--socket", path, says=["nobody listens"])

    def test_several_are_there(self):
        engines = [self.engine(), self.engine()]
        self.refuse(USAGE, "release", says=["2 controls answer", *(str(engine.pid) for engine in engines)])
        self.succeed("release", engines[0].pid)
        self.assertEqual(self.tell(engines[1], "check"), "whole")

    def test_what_the_process_refuses(self):
        engine = self.engine()
        self.refuse(USAGE, "release", "--tag", "nothing", says=['"nothing"'])
        self.assertEqual(self.tell(engine, "refuse a step runs\x1b[31m"), "ready")
        self.assertNotIn("\x1b", self.refuse(FAILURE, "release", says=["a step runs"]))
        self.tell(engine, "hold")
        before = self.tell(engine, "pauses")
        waiting = self.start("release")
        while self.tell(engine, "pauses") == before:
            time.sleep(0.01)
        self.refuse(FAILURE, "release", "--wait", "0.1", says=["another call"])
        waiting.send_signal(signal.SIGINT)
        self.assertEqual(self.finish(waiting).code, INTERRUPTED)
        self.tell(engine, "let go")
        self.succeed("release", "--wait", "60")
        self.succeed("resume")
        self.assertEqual(self.tell(engine, "check"), "whole")

    def test_token(self):
        path = str(self.folder / "control")
        self.engine(path, TOKEN)
        self.refuse(USAGE, "release", "--socket", path, says=["STAGEHAND_CONTROL_TOKEN"])
        self.environment["STAGEHAND_CONTROL_TOKEN"] = TOKEN + "x"
        self.refuse(USAGE, "release", "--socket", path, says=["STAGEHAND_CONTROL_TOKEN"])
        self.environment["STAGEHAND_CONTROL_TOKEN"] = TOKEN
        self.succeed("release", "--socket", path)

    def test_what_is_no_control(self):
        path = str(self.folder / "other")
        with socket.socket(socket.AF_UNIX) as server:
            server.bind(path)
            server.listen()
            for answer, says in (
                (b"", "without an answer"),
                (b"hello", "not HTTP"),
                (b"HTTP/1.1 200 OK\r\n\r\n[]", "no message"),
            ):

                def serve(answer=answer):
                    client = server.accept()[0]
                    client.recv(65536)
                    client.sendall(answer)
                    client.close()

                thread = threading.Thread(target=serve)
                thread.start()
                self.refuse(DEVICE, "release", "--socket", path, says=[says])
                thread.join()

    def test_the_plugin_is_not_installed(self):
        self.environment["STAGEHAND_BACKEND_PATH"] = str(self.folder)
        engine = self.engine(None)
        told = self.tell(engine, "start")
        self.assertEqual(told["status"], "SH_ERROR_BACKEND_LOAD")
        self.assertIn("is not installed", told["text"])
        self.assertIn(f"{self.folder}/libstagehand-control.so", told["text"])

    def test_the_end_of_a_process_removes_its_socket(self):
        engine = self.engine()
        self.assertTrue(os.path.exists(self.address))
        engine.stdin.close()
        engine.wait(DEADLINE_S)
        self.assertEqual(engine.returncode, 0)
        self.assertFalse(os.path.exists(self.address))

    @unittest.skipUnless(shutil.which("curl"), "there is no curl")
    def test_examples_of_the_document(self):
        """Runs the commands of docs/control.md as they stand, and compares the answers that follow them."""
        text = (SOURCE_ROOT / "docs/control.md").read_text(encoding="utf-8")
        engine = self.engine()
        variables = {
            "SOCKET": self.address,
            "TOKEN": TOKEN,
            "PATH": f"{pathlib.Path(COMMAND).parent}:{os.environ['PATH']}",
        }
        blocks = re.findall(r"```sh\n(.*?)```(?:\n\n```json\n(.*?)```)?", text, re.S)
        self.assertGreaterEqual(len(blocks), 6)
        for commands, answer in blocks:
            if "$ADDRESS" in commands:
                self.assertEqual(self.tell(engine, "stop"), "done")
                variables["ADDRESS"] = self.tell(engine, f"start 127.0.0.1:0 {TOKEN}")["address"]
            if "stagehand release" in commands and "ADDRESS" in variables:
                self.assertEqual(self.tell(engine, "stop"), "done")
                variables["SOCKET"] = self.tell(engine, "start")["address"]
            done = subprocess.run(
                ["bash", "-euc", commands], env=self.environment | variables, capture_output=True, text=True
            )
            self.assertEqual((done.returncode, done.stderr), (SUCCESS, ""), commands + done.stdout)
            if answer:
                self.assert_alike(json.loads(done.stdout), json.loads(answer))
        self.assertEqual(self.tell(engine, "check"), "whole")

    def assert_alike(self, told, example):
        """Times may differ."""
        told.pop("seconds", None), example.pop("seconds", None)
        self.assertEqual(told, example)

    @unittest.skipUnless(shutil.which("curl"), "there is no curl")
    def test_curl_gets_answers_of_every_kind(self):
        self.engine()

        def curl(path, *arguments):
            done = subprocess.run(
                [
                    "curl",
                    "-s",
                    "-w",
                    "\n%{http_code}",
                    "--unix-socket",
                    self.address,
                    "http://localhost" + path,
                    *arguments,
                ],
                capture_output=True,
                text=True,
                timeout=DEADLINE_S,
            )
            self.assertEqual(done.returncode, 0, done)
            body, code = done.stdout.rsplit("\n", 1)
            return int(code), body

        large = self.folder / "large"
        large.write_bytes(b" " * (3 << 20))  # curl asks before it sends so much
        for path, arguments, code in (
            ("/nowhere", [], 404),
            ("/memory", ["-X", "POST"], 405),
            ("/memory", ["-I"], 405),
            ("/release_memory_occupation", ["-d", "{"], 400),
            ("/release_memory_occupation", ["--data-binary", f"@{large}"], 413),
            ("/resume_memory_occupation", [], 409),
        ):
            got, body = curl(path, *arguments)
            self.assertEqual(got, code, path)
            if "-I" not in arguments:
                told = json.loads(body)
                self.assertEqual(told["success"], False)
                self.assertTrue(told["message"])
        code, body = curl("/metrics")
        self.assertEqual(code, 200)
        for line in body.strip().splitlines():
            self.assertRegex(line, r'^(# (HELP|TYPE) stagehand_\w+ .+|stagehand_\w+\{device="host:0"[^}]*\} \d+)$')


if __name__ == "__main__":
    harness.main()
