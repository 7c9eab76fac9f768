"""`stagehand run`: what it reports, and that it holds."""

import json
import math
import os
import re
import resource
import unittest

import harness
import model_files
from harness import CommandTest, DEVICE, OUTPUT, SUCCESS, USAGE

NAMES = """steps step_ms bound_ms bytes_per_step bound_bytes_per_step budget_bytes peak_device_bytes resident_bytes
    ring_bytes packed_resident_bytes helped_bytes_per_step blocks resident_blocks streamed_blocks hits in_time misses
    stall_ms verified_blocks mismatched_blocks""".split()


class RunTest(CommandTest):
    def stream(self, *arguments, device="host"):
        run = self.succeed("run", *arguments, "--device", device, "--json").json()
        self.assertLessEqual(set(NAMES), set(run))
        for name in NAMES:
            self.assertIsInstance(run[name], (int, float), name)
            self.assertGreaterEqual(run[name], 0, name)
        self.assertLessEqual(run["resident_bytes"] + run["ring_bytes"], run["budget_bytes"])
        self.assertLessEqual(run["peak_device_bytes"], run["budget_bytes"])
        self.assertLessEqual(run["in_time"], run["hits"])
        self.assertGreaterEqual(run["bytes_per_step"], run["bound_bytes_per_step"])
        self.assertEqual(run["resident_blocks"] + run["streamed_blocks"], run["blocks"])
        self.assertEqual(run["mismatched_blocks"], 0)
        self.assertFalse(run["interrupted"])
        return run

    def test_quarter_is_verified_in_each_step(self):
        run = self.stream(self.layered_model(), "--budget", "25%", "--steps", "5", "--verify")
        self.assertEqual(run["steps"], 5)
        self.assertEqual(run["verified_blocks"], run["blocks"] * 5)
        self.assertEqual(run["hits"] + run["misses"], run["blocks"] * 5)
        self.assertGreater(run["streamed_blocks"], 0)
        self.assertGreater(run["ring_bytes"], 0)
        self.assertGreater(run["step_ms"], 0)
        self.assertLessEqual(run["bytes_per_step"], 12 * (1 << 20) + 64)

    def test_nothing_is_verified_unasked(self):
        run = self.stream(self.layered_model(), "--budget", "25%", "--steps", "1")
        self.assertEqual(run["verified_blocks"], 0)

    def test_whole_model_in_the_budget_is_copied_once(self):
        run = self.stream(self.layered_model(), "--budget", "1GiB", "--steps", "4", "--verify")
        self.assertEqual(run["bytes_per_step"], 0)
        self.assertEqual(run["bound_bytes_per_step"], 0)
        self.assertEqual(run["resident_blocks"], run["blocks"])

    def test_process_with_few_addresses(self):
        few = 2 << 30
        result = self.run_command(
            *("run", self.layered_model(), "--budget", "25%", "--steps", "1", "--verify", "--device", "host"),
            preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (few, few)),
        )
        self.assertEqual(result.code, SUCCESS, result.err)

    def test_forward_backward(self):
        run = self.stream(
            self.layered_model(), "--budget", "25%", "--steps", "3", "--verify", "--order", "forward-backward"
        )
        self.assertEqual(run["verified_blocks"], run["blocks"] * 3)
        self.assertEqual(run["hits"] + run["misses"], 2 * run["blocks"] * 3)

    @unittest.skipUnless("STAGEHAND_HELPERS" in os.environ, "the build has no helpers")
    def test_another_device_helps(self):
        model = self.layered_model(layers=8, layer_bytes=6 << 20)
        pieces = ("--device-option", "staging_piece=4MiB")
        run = self.stream(model, "--budget", "50%", "--steps", "3", "--verify", "--helpers", "host:1", *pieces)
        self.assertEqual(run["verified_blocks"], run["blocks"] * 3)
        self.assertGreater(run["helped_bytes_per_step"], 0)
        self.assertLess(run["helped_bytes_per_step"], run["bytes_per_step"])
        run = self.stream(model, "--budget", "50%", "--steps", "1", *pieces)
        self.assertEqual(run["helped_bytes_per_step"], 0)

    def test_small_budgets_and_blocks(self):
        model = self.layered_model(layers=5, layer_bytes=100003, table_bytes=70001)
        for budget in ("64KiB", "10%", "33%", "90%"):
            with self.subTest(budget):
                run = self.stream(model, "--budget", budget, "--steps", "3", "--verify")
                self.assertEqual(run["verified_blocks"], run["blocks"] * 3)
        run = self.stream(model, "--budget", "50%", "--steps", "3", "--verify", "--max-block", "4096")
        self.assertGreater(run["blocks"], 100)

    def test_budget_below_the_smallest_names_it(self):
        model = self.layered_model()
        options = "--budget 1MiB --max-block 4MiB --steps 1 --device host --json".split()
        line = self.refuse(DEVICE, "run", model, *options, says=["embed"])
        smallest = self.succeed(
            "plan", model, "--budget", "50%", "--max-block", "4MiB", "--bandwidth", "1GB", "--device", "host", "--json"
        ).json()["smallest_budget_bytes"]
        self.assertIn(str(smallest), line.replace(",", ""))
        run = self.stream(model, "--budget", smallest, "--max-block", "4MiB", "--steps", "3", "--verify")
        self.assertEqual(run["verified_blocks"], run["blocks"] * 3)

    def test_compute_is_a_floor(self):
        run = self.stream(self.layered_model(), "--budget", "25%", "--steps", "3", "--compute-ms", "40")
        self.assertGreaterEqual(run["step_ms"], 39.9)
        self.assertGreaterEqual(run["bound_ms"], 40)

    def test_link_of_a_set_speed_is_measured(self):
        # Exact in virtual time. A device of real time keeps the speed from above only: a busy machine is slower.
        for device, least, most in (("sim", 3.99e8, 4.01e8), ("host", 4e7, 4.4e8)):
            with self.subTest(device=device):
                options = "--budget 25% --steps 3 --device-option bandwidth=400000000".split()
                options += ["--device-option", "granularity=64KiB"] if device == "sim" else []
                run = self.stream(self.layered_model(), *options, device=device)
                speed = run["copy_bytes_per_second"]
                self.assertGreaterEqual(speed, least)
                self.assertLessEqual(speed, most)
                excess = run["model_bytes"] - run["budget_bytes"]
                self.assertTrue(math.isclose(run["bound_ms"], excess / speed * 1e3, rel_tol=0.05), run)

    def test_no_step_is_faster_than_its_bound(self):
        # Each copy has a latency. The blocks of the model are larger than the blocks with which the link is measured,
        # so that the link is faster in the steps.
        model = self.layered_model(layers=4, layer_bytes=8 << 20, table_bytes=64)
        options = ["--budget", "17MiB", "--max-block", "8MiB", "--device", "sim"]
        options += ["--device-option", "granularity=64KiB", "--device-option", "bandwidth=10GB/s"]
        fast = ["--device-option", "latency=20000000"]
        note = "The link was faster in the steps than before them"
        for steps in ("3", "1"):
            for more, faster in (([], False), (fast, True)):
                with self.subTest(steps=steps, faster=faster):
                    run = self.succeed("run", model, *options, *more, "--steps", steps, "--json").json()
                    self.assertGreaterEqual(run["step_ms"], 0.9999 * run["bound_ms"])
                    speed, measured = run["copy_bytes_per_second"], run["measured_bytes_per_second"]
                    self.assertEqual(speed > 1.0005 * measured, faster, run)
                    if faster:
                        self.assertAlmostEqual(speed * run["step_ms"] / 1e3 / run["bytes_per_step"], 1, delta=1e-6)
                    out = self.succeed("run", model, *options, *more, "--steps", steps, "--quiet").out
                    self.assertEqual(note in out, faster, out)
                    self.assertEqual("at the measured speed of the link" in out, not faster)

    def test_no_step_from_the_caches_is_faster_than_its_bound(self):
        # Files of a small model are read through staging buffers that stay in the caches of a processor. The link is
        # measured with more memory than that.
        model = self.layered_model(layers=6, layer_bytes=1 << 20, table_bytes=64)
        for budget in ("40%", "60%", "80%"):
            run = self.succeed("run", model, "--budget", budget, "--steps", "9", "--device", "host", "--json").json()
            self.assertGreaterEqual(run["step_ms"], 0.9999 * run["bound_ms"], run)

    def test_gguf_and_shards(self):
        model_files.write_gguf(self.folder / "tiny.gguf", model_files.layered_gguf_tensors(6))
        run = self.stream("tiny.gguf", "--budget", "40%", "--steps", "3", "--verify")
        self.assertEqual(run["verified_blocks"], run["blocks"] * 3)
        index = model_files.write_sharded(self.folder / "shards", model_files.layered_tensors(6, 1 << 18, 1 << 18), 3)
        for path in ("shards", index):
            run = self.stream(path, "--budget", "30%", "--steps", "3", "--verify")
            self.assertEqual(run["verified_blocks"], run["blocks"] * 3)

    def test_first_device_that_works_is_taken(self):
        run = self.stream(self.layered_model(), "--budget", "50%", "--steps", "2", "--verify", device="auto")
        self.assertNotEqual(run["device"], "auto")

    def test_simulation_streams_but_cannot_be_verified(self):
        model = self.layered_model()
        self.stream(model, "--budget", "25%", "--steps", "3", "--device-option", "granularity=64KiB", device="sim")
        options = "--budget 25% --steps 3 --verify --device sim --device-option granularity=64KiB".split()
        self.refuse(USAGE, "run", model, *options, says=["--verify", "sim"])

    def test_plain_lines_and_a_table_without_a_terminal(self):
        out = self.succeed(
            "run", self.layered_model(), "--budget", "25%", "--steps", "3", "--verify", "--device", "host"
        ).out
        for step in (1, 2, 3):
            self.assertIn(f"streaming {step}/3", out)
            self.assertIn(f"verifying {step}/3", out)
        for fact in (
            "step time",
            "bound",
            "copied a step",
            "device bytes",
            "hits",
            "stalls",
            "verified       all equal",
        ):
            self.assertIn(fact, out)
        self.assertNotIn("\x1b", out)
        self.assertNotIn("\r", out)
        quiet = self.succeed(
            "run", "model.safetensors", "--budget", "25%", "--steps", "3", "--device", "host", "--quiet"
        ).out
        self.assertNotIn("streaming", quiet)
        self.assertIn("step time", quiet)

    def test_bar_on_a_terminal(self):
        model = self.layered_model()
        process, terminal = self.start_on_terminal(
            "run", model, "--budget", "25%", "--steps", "4", "--device", "host", "--json", "--compute-ms", "200"
        )
        shown = self.wait_on_terminal(terminal, None)
        out, _ = process.communicate()
        self.assertEqual(process.returncode, SUCCESS)
        self.assertEqual(json.loads(out)["steps"], 4)
        self.assertIn("█".encode(), shown)
        self.assertIn(b"loading ", shown)
        self.assertIn(b"streaming ", shown)
        # The progress bar is erased.
        self.assertTrue(shown.endswith(b"\r\x1b[K"), shown[-40:])

    def progress_lines(self, **terminal):
        """What a run of four steps draws on a terminal, one text for each time that it draws."""
        arguments = ["run", self.layered_model(), "--budget", "25%", "--steps", "4", "--device", "host"]
        process, leader = self.start_on_terminal(*arguments, "--json", "--compute-ms", "200", **terminal)
        shown = self.wait_on_terminal(leader, None).decode()
        process.communicate()
        self.assertEqual(process.returncode, SUCCESS)
        return [line.split("\x1b[K")[0] for line in shown.split("\r")]

    def test_no_color_takes_colours_away_and_not_the_bar(self):
        lines = self.progress_lines(environment={"NO_COLOR": "1"})
        self.assertTrue(any("streaming █" in line for line in lines), lines)
        self.assertFalse(any(re.search(r"\x1b\[[0-9;]*m", line) for line in lines), lines)

    def test_dumb_terminal_has_no_bar(self):
        self.assertEqual(self.progress_lines(environment={"TERM": "dumb"}), [""])

    def test_narrow_terminal_keeps_the_step_count(self):
        for columns in (80, 60, 40, 30, 20, 12, 8):
            with self.subTest(columns=columns):
                lines = [line for line in self.progress_lines(columns=columns) if line]
                self.assertTrue(lines)
                for line in lines:
                    self.assertRegex(line, r"[1-4]/[14]")
                    self.assertLess(len(line), columns)
                last = lines[-1]
                self.assertEqual("streaming " in last, columns >= 20, last)
                self.assertEqual("█" in last or "·" in last, columns >= 30, last)
                self.assertEqual(" ms" in last, columns >= 40, last)
                self.assertEqual("copied" in last, columns >= 60, last)

    def test_telemetry_has_a_line_a_timed_step(self):
        self.stream(self.layered_model(), "--budget", "25%", "--steps", "4", "--verify", "--telemetry", "steps.jsonl")
        lines = (self.folder / "steps.jsonl").read_text().splitlines()
        self.assertEqual(len(lines), 4)
        for line in lines:
            self.assertIsInstance(json.loads(line), dict)

    def test_outputs_replace_nothing_that_is_in_use(self):
        model = self.layered_model()
        before = (self.folder / model).read_bytes()
        os.link(self.folder / model, self.folder / "link")
        run = ("run", model, "--budget", "25%", "--steps", "1", "--device", "host")
        for option in ("--trace", "--telemetry", "--report"):
            for path in (model, "link"):
                self.refuse(USAGE, *run, option, path, says=[option, path, "would replace"])
        self.assertEqual((self.folder / model).read_bytes(), before)
        same = ("--trace", "one.json", "--telemetry", "./one.json")
        self.refuse(USAGE, *run, *same, says=["would replace --trace one.json"])
        self.assertFalse((self.folder / "one.json").exists())
        self.stream(model, "--budget", "25%", "--steps", "1", "--trace", "/dev/null", "--telemetry", "/dev/null")

    def test_trace_is_whole(self):
        self.stream(
            self.layered_model(), "--budget", "25%", "--steps", "3", "--compute-ms", "2", "--trace", "trace.json"
        )
        with open(self.folder / "trace.json", encoding="utf-8") as file:
            trace = json.load(file)
        events = trace["traceEvents"] if isinstance(trace, dict) else trace
        self.assertGreater(len(events), 10)
        open_events = {}
        for event in events:
            self.assertIn("ph", event)
            key = (event.get("pid"), event.get("tid"), event.get("id"), event.get("cat"))
            if event["ph"] in "Bb":
                open_events.setdefault(key, []).append(event)
            elif event["ph"] in "Ee":
                self.assertTrue(open_events.get(key), f"ends what never began: {event}")
                open_events[key].pop()
            elif event["ph"] == "X":
                self.assertGreaterEqual(event["dur"], 0)
        self.assertEqual([left for left in open_events.values() if left], [])
        self.assertTrue([event for event in events if event["ph"] == "X" and event["name"] == "plan"])
        # Perfetto drops a slice that overlaps another slice of its thread in part.
        ends = {}
        for event in sorted((event for event in events if event["ph"] == "X"), key=lambda event: event["ts"]):
            thread = (event["pid"], event["tid"])
            self.assertGreaterEqual(event["ts"], ends.get(thread, 0) - 5e-4, event)
            ends[thread] = event["ts"] + event["dur"]
        self.assertGreater(len([event for event in events if event["ph"] == "X" and "bytes" in event["args"]]), 10)
        held = [event["args"]["value"] for event in events if event["ph"] == "C" and event["name"] == "held bytes"]
        self.assertGreater(held[-1], 0)

    def test_outputs_that_cannot_be_written(self):
        run = ["run", self.layered_model(), *"--budget 25% --steps 2 --device host --json".split()]
        for option in ("--trace", "--telemetry"):
            for path in ("no/such/file", "/dev/full"):
                with self.subTest(option, path=path):
                    line = self.refuse(OUTPUT, *run, option, path, says=[path])
                    self.assertNotIn("block", line)


if __name__ == "__main__":
    harness.main()
