"""`stagehand run` under disturbances: Ctrl-C, files that shrink or change, a device that fails."""

import json
import os
import signal
import subprocess

import harness
from harness import CommandTest, FAILURE, INTERRUPTED, MODEL, SUCCESS

ENDLESS = ["--steps", "1000000", "--device", "host"]


class DisturbedRunTest(CommandTest):
    def test_interrupt_reports_what_was_measured(self):
        options = ["--compute-ms", "5", "--json", "--telemetry", "steps.jsonl"]
        process = self.start("run", self.layered_model(), "--budget", "25%", *ENDLESS, *options)
        self.wait_for_file(process, self.folder / "steps.jsonl", 3)
        process.send_signal(signal.SIGINT)
        result = self.finish(process)
        self.assertEqual(result.code, INTERRUPTED, result.err)
        run = result.json()
        self.assertTrue(run["interrupted"])
        self.assertGreaterEqual(run["steps"], 2)
        self.assertGreaterEqual(run["step_ms"], 4.9)
        for line in (self.folder / "steps.jsonl").read_text().splitlines():
            json.loads(line)

    def test_interrupt_without_json_shows_the_table(self):
        process = self.start("run", self.layered_model(), "--budget", "25%", *ENDLESS, "--compute-ms", "5")
        self.wait_for_line(process, "streaming       1/1000000")
        process.send_signal(signal.SIGINT)
        result = self.finish(process)
        self.assertEqual(result.code, INTERRUPTED, result.err)
        self.assertIn("interrupted", result.out)
        self.assertIn("step time", result.out)

    def test_termination_is_told_apart(self):
        process = self.start("run", self.layered_model(), "--budget", "25%", *ENDLESS, "--compute-ms", "5")
        self.wait_for_line(process, "streaming       1/1000000")
        process.send_signal(signal.SIGTERM)
        self.assertEqual(self.finish(process).code, 128 + signal.SIGTERM)

    def test_second_interrupt_kills(self):
        model = self.layered_model()
        # A step of ten minutes. When the bar shows, the compute of a block is queued, and the first signal waits for
        # it.
        process, terminal = self.start_on_terminal("run", model, "--budget", "25%", *ENDLESS, "--compute-ms", "600000")
        self.wait_on_terminal(terminal, b"loading")
        while process.poll() is None:
            process.send_signal(signal.SIGINT)
            try:
                process.wait(timeout=0.05)
            except subprocess.TimeoutExpired:
                pass
        process.communicate()
        self.assertEqual(process.returncode, -signal.SIGINT)

    def test_file_that_shrinks_while_it_is_streamed(self):
        for verify in ([], ["--verify"]):
            with self.subTest(verify=verify):
                model = self.layered_model()
                process = self.start("run", model, "--budget", "25%", *ENDLESS, "--compute-ms", "2", *verify)
                self.wait_for_line(process, "streaming       1/1000000")
                os.truncate(model, 5 << 20)
                result = self.finish(process)
                self.assertEqual(result.code, MODEL, result.err)
                self.assert_one_error(result, ["model.safetensors", "tensor '", "shrunk", str(5 << 20)])

    def test_file_that_shrinks_before_it_is_verified(self):
        model = self.layered_model()
        # The whole model stays on the device, so that only the verification reads the file again.
        process = self.start(
            "run", model, "--budget", "1GiB", "--steps", "12", "--device", "host", "--compute-ms", "50", "--verify"
        )
        self.wait_for_line(process, "streaming  2/12")
        os.truncate(model, 5 << 20)
        result = self.finish(process)
        self.assertEqual(result.code, MODEL, result.err)
        self.assert_one_error(result, ["model.safetensors", "shrunk"])

    def test_shrinking_leaves_no_json(self):
        model = self.layered_model()
        process = self.start(
            "run", model, "--budget", "25%", *ENDLESS, "--compute-ms", "2", "--json", "--telemetry", "steps.jsonl"
        )
        self.wait_for_file(process, self.folder / "steps.jsonl", 2)
        os.truncate(model, 1000)
        result = self.finish(process)
        self.assertEqual(result.code, MODEL, result.err)
        self.assertEqual(result.out, "")
        self.assert_one_error(result, ["shrunk"])

    def after_loading(self, change):
        """What a run tells whose file is changed after the device has loaded all of it."""
        model = self.layered_model()
        arguments = "--budget 1GiB --steps 12 --device host --compute-ms 50 --verify --json --telemetry steps.jsonl"
        process = self.start("run", model, *arguments.split())
        self.wait_for_file(process, self.folder / "steps.jsonl", 2)
        change(model)
        return self.finish(process)

    def test_single_bit_that_differs_is_found(self):
        # The device holds what the file held when it was loaded; one bit of the last layer differs from then on.
        def flip(model):
            with open(model, "r+b") as file:
                file.seek(-5000, os.SEEK_END)
                byte = file.read(1)
                file.seek(-5000, os.SEEK_END)
                file.write(bytes([byte[0] ^ 1]))

        result = self.after_loading(flip)
        self.assertEqual(result.code, FAILURE, result.err)
        self.assert_one_error(result, ["verification", "layers.7", "has been changed"])
        run = result.json()
        self.assertEqual(run["mismatched_blocks"], 12)
        self.assertEqual(run["verified_blocks"], 12 * run["blocks"])

    def test_file_that_is_only_touched_verifies(self):
        result = self.after_loading(os.utime)
        self.assertEqual(result.code, SUCCESS, result.err)
        self.assertEqual(result.json()["mismatched_blocks"], 0)


if __name__ == "__main__":
    harness.main()
