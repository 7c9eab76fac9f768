"""The four-stage video pipeline: its promises, its trace, its contents, and its failures."""

import json
import os
import pathlib
import re
import subprocess
import tempfile
import unittest

PROGRAM = os.environ["FOUR_PASS"]
SUCCESS, FAILURE, USAGE = 0, 1, 2
DEADLINE_S = 100

STAGES = ["1 text encoding", "2 base generation", "3 spatial upscaling", "4 temporal upscaling"]
MODELS = ["transformer", "text encoder", "spatial upscaler", "temporal upscaler"]
TEXT_ENCODER_BYTES = 2 * (256128 * 3584 + 42 * 198_200_000)
GUEST_BYTES = {"spatial upscaler": 996_000_000, "temporal upscaler": 262_000_000}
TRANSFORMER_BYTES = 2 * (48 * 452_000_000 + 2 * 150_000_000)


class FourPassTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="stagehand-four-pass-")
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def run_program(self, *arguments):
        environment = {key: value for key, value in os.environ.items() if not key.startswith("STAGEHAND_")}
        return subprocess.run(
            [PROGRAM, *map(str, arguments)],
            capture_output=True,
            text=True,
            timeout=DEADLINE_S,
            stdin=subprocess.DEVNULL,
            env=environment,
            cwd=self.folder,
            check=False,
        )

    def succeed(self, *arguments):
        """Runs the pipeline, checks that all its promises hold, and returns its output."""
        result = self.run_program(*arguments)
        self.assertEqual(result.returncode, SUCCESS, result.stdout + result.stderr)
        self.assertEqual(result.stderr, "")
        self.assertNotIn("BROKEN", result.stdout)
        self.assertGreaterEqual(len(re.findall("^kept ", result.stdout, re.M)), 9)
        for stage in STAGES:
            self.assertIn(stage + ":", result.stdout)
        return result.stdout

    def refuse(self, code, *arguments, says=()):
        result = self.run_program(*arguments)
        self.assertEqual(result.returncode, code, result.stdout + result.stderr)
        self.assertEqual(result.stdout, "")
        self.assertEqual(len(result.stderr.splitlines()), 1, result.stderr)
        self.assertTrue(result.stderr.startswith("four_pass: "), result.stderr)
        for text in says:
            self.assertIn(text, result.stderr)

    def times(self, out, stage):
        """Returns the milliseconds that a stage took, and those that it computed."""
        found = re.search(rf"^{stage}: ([\d.]+) ms, of which ([\d.]+) ms computing$", out, re.M)
        self.assertIsNotNone(found, out)
        return float(found[1]), float(found[2])

    def row(self, out, stage, model):
        """Returns a model's line in a stage's table: ten cells after its name."""
        table = out.partition(stage + ":")[2].partition("\n\n")[0]
        line = next(line for line in table.splitlines() if line.strip().startswith(model + " "))
        cells = re.split(r"\s{2,}", line.strip().removeprefix(model).strip())
        names = ["weights", "resident", "ring", "held", "protected", "reserved", "guest", "copied", "given up", "stall"]
        self.assertEqual(len(cells), len(names), line)
        return dict(zip(names, cells))

    def test_real_size_in_virtual_time(self):
        out = self.succeed()
        self.assertIn("kept   2 more prompts copied 0 bytes of the text encoder; 0 of its bytes do not stay", out)
        self.assertIn("kept   the transformer gave up 0 bytes while it was reserved", out)
        for stage in STAGES:
            took, computed = self.times(out, stage)
            self.assertGreaterEqual(took, computed)
        # The text encoder is copied once, and the prompts after the first only compute.
        took, computed = self.times(out, STAGES[0])
        self.assertLess(took, TEXT_ENCODER_BYTES / 25e9 * 1e3 + computed)
        # Streaming 44 GB through 22 costs less than 3 %, the first loads included.
        took, computed = self.times(out, STAGES[1])
        self.assertLess(took, computed * 1.03)

    def test_tables(self):
        out = self.succeed()
        encoder, transformer = self.row(out, STAGES[0], "text encoder"), self.row(out, STAGES[0], "transformer")
        self.assertEqual(encoder["protected"], encoder["held"])
        self.assertEqual(encoder["copied"], "18.5 GB")
        self.assertEqual((transformer["protected"], transformer["reserved"]), ("0 B", "0 B"))
        for stage in STAGES[1:]:
            transformer = self.row(out, stage, "transformer")
            self.assertEqual(transformer["reserved"], transformer["held"])
            self.assertEqual(transformer["given up"], "0 B")
            self.assertEqual(self.row(out, stage, "text encoder")["held"], "0 B")
        for stage, model in zip(STAGES[2:], MODELS[2:]):
            guest = self.row(out, stage, model)
            self.assertEqual(guest["guest"], guest["held"])
            self.assertEqual(guest["copied"], f"{GUEST_BYTES[model] / 1e6:.1f} MB")
            self.assertEqual(self.row(out, stage, "transformer")["copied"], "0 B")
        self.assertEqual(self.row(out, STAGES[3], "spatial upscaler")["held"], "0 B")

    def test_virtual_time_is_the_same_each_time(self):
        self.assertEqual(self.succeed(), self.succeed())

    def test_trace(self):
        self.succeed("--trace", "trace.json", "--prompts", 2, "--steps", 5)
        events = json.loads((self.folder / "trace.json").read_text())["traceEvents"]
        names = {event["pid"]: event["args"]["name"] for event in events if event["name"] == "process_name"}
        self.assertEqual(sorted(names.values()), sorted(MODELS))
        tracks = {
            (event["pid"], event["tid"]): event["args"]["name"] for event in events if event["name"] == "thread_name"
        }
        steps, loaded = {name: [] for name in MODELS}, dict.fromkeys(MODELS, 0)
        for event in events:
            if event["ph"] != "X":
                continue
            track = tracks[event["pid"], event["tid"]]
            if track == "steps":
                steps[names[event["pid"]]].append((event["ts"], event["ts"] + event["dur"]))
            if re.fullmatch(r"loads( \d+)?", track):  # loads that overlap are on further threads
                loaded[names[event["pid"]]] += event["args"]["bytes"]
        self.assertEqual(
            {name: len(spans) for name, spans in steps.items()},
            {"transformer": 5, "text encoder": 2, "spatial upscaler": 1, "temporal upscaler": 1},
        )
        # One model after the other, in the order of the stages.
        spans = [
            span
            for name in ("text encoder", "transformer", "spatial upscaler", "temporal upscaler")
            for span in steps[name]
        ]
        for (begin, end), (next_begin, _) in zip(spans, spans[1:]):
            self.assertLess(begin, end)
            self.assertLessEqual(end, next_begin + 0.001)
        # A resident model and a guest are loaded once. A streaming model is loaded more than once.
        self.assertEqual(loaded["text encoder"], TEXT_ENCODER_BYTES)
        for model, size in GUEST_BYTES.items():
            self.assertEqual(loaded[model], size)
        self.assertGreater(loaded["transformer"], TRANSFORMER_BYTES)

    def test_less_memory_streams_more(self):
        out = self.succeed("--budget", "12GiB")
        found = re.search(r"2 more prompts copied (\d+) bytes of the text encoder; (\d+) of its bytes do not stay", out)
        copied, streamed = int(found[1]), int(found[2])
        self.assertGreaterEqual(streamed, TEXT_ENCODER_BYTES - 12 * 2**30)
        self.assertLessEqual(copied, 2 * streamed)
        self.assertGreater(copied, 0)
        self.assertEqual(self.row(out, STAGES[0], "transformer")["held"], "0 B")

    def test_slow_link(self):
        out = self.succeed("--link", "12GB/s")
        took, computed = self.times(out, STAGES[1])
        self.assertGreater(took, computed * 1.2)

    def test_contents_on_the_host(self):
        out = self.succeed("--device", "host", "--scale", "1/1024", "--verify")
        compared = (3 * TEXT_ENCODER_BYTES + 8 * TRANSFORMER_BYTES + sum(GUEST_BYTES.values())) / 1024
        self.assertIn(f"kept   every byte that was used was compared: {compared / 1e6:.1f} MB, 0 layers wrong", out)

    def test_contents_where_everything_streams(self):
        out = self.succeed(
            "--device", "host", "--scale", "1/2048", "--verify", "--budget", "6GiB", "--prompts", 2, "--steps", 3
        )
        self.assertIn(" 0 layers wrong", out)
        self.assertNotIn("copied 0 bytes of the text encoder", out)

    def test_budget_too_small(self):
        self.refuse(
            FAILURE, "--budget", "3GiB", says=["transformer", "upscalers leave", "SH_ERROR_BUDGET", "905969664"]
        )
        self.refuse(FAILURE, "--budget", "1500MB", says=["text encoder", "SH_ERROR_BUDGET", "1837105152"])
        self.refuse(
            FAILURE,
            "--budget",
            "1500MB",
            "--device",
            "host",
            "--scale",
            "1/1024",
            says=["text encoder", "SH_ERROR_BUDGET"],
        )
        self.refuse(FAILURE, "--budget", "1KB", says=["device sim", "SH_ERROR_BUDGET"])

    def test_what_cannot_be(self):
        self.refuse(FAILURE, "--verify", says=["--verify", "simulation"])
        self.refuse(FAILURE, "--device", "nothing", says=["device nothing", "SH_ERROR_NOT_FOUND"])
        self.refuse(FAILURE, "--trace", "no/such/folder.json", says=["no/such/folder.json", "SH_ERROR_IO"])

    def test_wrong_options(self):
        self.refuse(USAGE, "--scale", "2", says=["--scale 2"])
        self.refuse(USAGE, "--scale", "1/0", says=["--scale 1/0"])
        self.refuse(USAGE, "--budget", "-1", says=["--budget -1"])
        self.refuse(USAGE, "--budget", "3 apples", says=["--budget 3 apples"])
        self.refuse(USAGE, "--prompts", "0", says=["--prompts 0"])
        self.refuse(USAGE, "--nothing", says=["--nothing"])
        self.refuse(USAGE, "--steps", says=["--steps"])
        self.refuse(USAGE, "more", says=["more"])

    def test_help(self):
        result = self.run_program("--help")
        self.assertEqual((result.returncode, result.stderr), (SUCCESS, ""))
        self.assertIn("--trace FILE", result.stdout)


if __name__ == "__main__":
    unittest.main()
