"""`stagehand bench` on the host device and in the simulation, in which times are exact."""

import math
import os
import re
import shutil
import signal
import subprocess
import unittest

import harness
from harness import CommandTest, DEVICE, INTERRUPTED, OUTPUT, SOURCE_ROOT, USAGE

# Folders of the cuda backend, and of a stub of its driver that uses the host's memory.
CUDA_PATH = os.environ.get("STAGEHAND_CUDA_PATH")
STUB_PATH = os.environ.get("STAGEHAND_STUB_PATH")

GROUPS = ["link", "pinning", "staging", "mapping", "occupancy", "streaming", "graph"]
TOP_KEYS = {"device", "description", "page_bytes", "link_bytes_per_second", "pinned", "quick", "interrupted", "groups"}
ROW_KEYS = {"name", "unit", "value", "limit", "limit_name", "ratio", "beats_limit"}
# Limits that nothing should beat: the link, and what is computed from it. The others are for comparison.
FIRM = {"link", "raw copies", "planned bytes / link", "computing alone"}
STREAMING_KEYS = set(
    """shape blocks model_bytes budget_bytes compute_to_copy compute_seconds largest_block_seconds planned_seconds
    ratio_to_plan bound_seconds ratio_to_bound planned_bytes copied_bytes bound_bytes host_waits steps
    shortest_seconds longest_seconds""".split()
)
MORE_KEYS = {
    "link": set(),
    "pinning": {"bytes", "seconds_per_gib", "pinned"},
    "staging": {"bytes", "segments"},
    "mapping": {"bytes", "seconds_per_gib", "page_bytes"},
    "occupancy": set(
        """shape allocations bytes footprint_bytes copied_bytes cycles shortest_seconds longest_seconds ratio_to_link
        freed_ratio peak_ratio host_ratio compared_cycles pinned""".split()
    ),
    "streaming": STREAMING_KEYS,
    "graph": set(
        """blocks model_bytes budget_bytes compute_to_copy host_seconds host_seconds_by_calls copied_bytes
        copied_bytes_by_calls steps""".split()
    ),
}
KINDS = ["nothing pinned before", "pinned for a second", "contents changed", "contents unchanged", "contents dropped"]
KINDS += ["constant contents", "weights packed", "weights packed, unchanged"]
SMALL = ["--quick", "--bytes", "32MiB"]
# Streaming takes minutes at this speed. The earlier results are on the screen by then.
SLOW = "bench --device host --device-option bandwidth=200MB/s --bytes 32MiB --only link,streaming".split()


class BenchTest(CommandTest):
    def assert_rows(self, group, rows):
        for row in rows:
            with self.subTest(group=group, row=row["name"]):
                self.assertLessEqual(ROW_KEYS | MORE_KEYS[group], set(row))
                self.assertIn(row["unit"], ("bytes_per_second", "seconds"))
                for key in ("value", "limit", "ratio"):
                    self.assertIsInstance(row[key], (int, float), key)
                    self.assertTrue(math.isfinite(row[key]), key)
                    self.assertGreater(row[key], 0, key)
                self.assertAlmostEqual(row["ratio"], row["value"] / row["limit"], places=6)
                self.assertNotEqual(row["limit_name"], "")
                better = row["ratio"] < 0.9995 if row["unit"] == "seconds" else 1 / row["ratio"] < 0.9995
                self.assertEqual(row["beats_limit"], better and row["limit_name"] in FIRM)

    def test_host_device_has_every_group(self):
        result = self.succeed("bench", "--device", "host", *SMALL, "--json").json()
        self.assertEqual(set(result), TOP_KEYS)
        self.assertEqual(result["device"], "host:0")
        self.assertTrue(result["quick"])
        self.assertFalse(result["interrupted"])
        self.assertGreater(result["link_bytes_per_second"], 0)
        self.assertEqual(list(result["groups"]), GROUPS)
        counts = {}
        for name, group in result["groups"].items():
            self.assertEqual(set(group), {"rows", "notes"})
            self.assert_rows(name, group["rows"])
            counts[name] = len(group["rows"])
        # 2 + 6 of 24 equal blocks, 1 + 12 of the 8B shapes, 6 of 400 blocks.
        self.assertEqual(
            counts,
            {"link": 3, "pinning": 2, "staging": 6, "mapping": 4, "occupancy": 64, "streaming": 27, "graph": 0},
        )
        self.assertEqual(len(result["groups"]["graph"]["notes"]), 1)
        self.assertIn("host:0", result["groups"]["graph"]["notes"][0])

    def test_tables_show_what_the_json_has(self):
        text = self.succeed("bench", "--device", "host", *SMALL, "--only", "link,pinning,mapping").out
        rows = ["host to device", "both ways at once", "sh_host_alloc", "first plan", "budget halved"]
        for name in ["link", "pinning", "mapping", *rows]:
            self.assertIn(name, text)
        self.assertNotIn("streaming", text)
        lines = text.splitlines()
        head = next(line for line in lines if line.startswith("what "))
        for title in ("measured", "limit", "ratio", "the limit is"):
            self.assertIn(title, head)
        rows = [line for line in lines if "GB/s" in line or " ms " in line or " us " in line]
        self.assertTrue(any(re.search(r"\d\.\d{3} (×|x)", line) for line in rows), text)

    def test_groups_are_measured_in_their_order(self):
        result = self.succeed("bench", "--device", "host", *SMALL, "--only", "mapping,link", "--json").json()
        self.assertEqual(list(result["groups"]), ["link", "mapping"])
        self.assertTrue(result["pinned"] in (True, False))

    def test_simulated_steps_take_what_the_plan_expects(self):
        result = self.succeed("bench", "--device", "sim", "--quick", "--json").json()
        self.assertEqual(list(result["groups"]), ["link", "streaming"])
        self.assert_rows("streaming", result["groups"]["streaming"]["rows"])
        self.assertEqual(result["groups"]["streaming"]["notes"], [])
        self.assertAlmostEqual(result["groups"]["link"]["rows"][0]["ratio"], 1, delta=0.001)
        for row in result["groups"]["streaming"]["rows"]:
            with self.subTest(row=row["name"]):
                self.assertAlmostEqual(row["ratio_to_plan"], 1, delta=0.002)
                self.assertEqual(row["copied_bytes"], row["planned_bytes"])
                self.assertGreaterEqual(row["ratio"], 0.999)
                # A step moves at least the bytes that do not fit, and computes for the given time.
                excess = row["model_bytes"] - row["budget_bytes"]
                self.assertGreaterEqual(row["planned_bytes"], excess)
                bound = max(excess / result["link_bytes_per_second"], row["compute_seconds"])
                self.assertAlmostEqual(row["bound_seconds"] / bound, 1, delta=0.001)
                self.assertLessEqual(row["shortest_seconds"], row["value"])
                self.assertLessEqual(row["value"], row["longest_seconds"])

    def test_models_are_scaled_to_the_bytes_asked_for(self):
        result = self.succeed("bench", "--device", "sim", "--only", "streaming", "--bytes", "3GiB", "--json").json()
        for row in result["groups"]["streaming"]["rows"]:
            if row["shape"] == "8B shapes":
                self.assertAlmostEqual(row["model_bytes"] / (3 << 30), 1, delta=0.01)

    def test_slow_link_is_the_limit(self):
        arguments = "--device host --device-option bandwidth=500MB/s --only link --json".split()
        result = self.succeed("bench", *SMALL, *arguments).json()
        self.assertLess(result["link_bytes_per_second"], 510e6)
        self.assertEqual(len(result["groups"]["link"]["rows"]), 3)

    def test_paused_memory_is_freed_and_compared(self):
        self.environment["STAGEHAND_LOG"] = "debug"
        run = self.run_command("bench", "--device", "host", *SMALL, "--only", "occupancy", "--json")
        self.assertEqual(run.code, 0, run.err)
        rows = run.json()["groups"]["occupancy"]["rows"]
        self.assertEqual(
            [row["name"].split(": ")[1] for row in rows[:16]],
            [f"{call}, {contents}" for contents in KINDS for call in ("release", "resume")],
        )
        self.assertEqual({row["allocations"] for row in rows}, {8, 291, 854, 32})
        for row in rows:
            with self.subTest(row=row["name"]):
                self.assertEqual(row["freed_ratio"], 1)
                self.assertLessEqual(row["peak_ratio"], 1)
                self.assertGreater(row["peak_ratio"], 0.9)
                self.assertGreaterEqual(row["host_ratio"], 1)
                # The last cycle of each kind that keeps contents, and the one whose peak is watched.
                constant, packed = "constant" in row["name"], "packed" in row["name"]
                self.assertEqual(row["compared_cycles"], 2 if constant else 3 if packed else 5)
                self.assertEqual(row["cycles"], 2 if "pinned" in row["name"] else 3)
                spared = "dropped" in row["name"] or row["name"].endswith(
                    ("release, contents unchanged", "release, constant contents", "release, weights packed, unchanged")
                )
                self.assertEqual(row["copied_bytes"], 0 if spared else row["footprint_bytes"])
                if "resume" in row["name"]:
                    self.assertEqual(row["packed_bytes"], row["footprint_bytes"] if packed else 0)
                self.assertAlmostEqual(row["ratio_to_link"], row["limit"] / row["value"], places=6)
        for part in ("sh_pause() took", "sh_resume() took", "waiting for copies", "unmap"):
            self.assertIn(part, run.err)

    def test_refused_pinning_is_told(self):
        result = self.succeed("bench", "--device", "host", "--device-option", "pin_limit=1MB", *SMALL, "--json").json()
        self.assertIs(result["pinned"], False)
        for name in ("link", "pinning", "staging", "occupancy"):
            self.assertEqual(len(result["groups"][name]["notes"]), 1, name)
            self.assertIn("be pinned", result["groups"][name]["notes"][0])
        for row in result["groups"]["pinning"]["rows"]:
            self.assertIs(row["pinned"], False)

    @unittest.skipUnless(STUB_PATH and CUDA_PATH, "there is no stub of CUDA's driver in this build")
    def test_cuda_device_has_graphs_and_the_drivers_own_pinned_memory(self):
        self.environment["STAGEHAND_BACKEND_PATH"] = CUDA_PATH
        self.environment["LD_LIBRARY_PATH"] = STUB_PATH
        result = self.succeed(
            "bench", "--device", "cuda:0", *SMALL, "--only", "pinning,occupancy,graph", "--json"
        ).json()
        self.assertEqual(result["device"], "cuda:0")
        pinning = result["groups"]["pinning"]["rows"]
        self.assert_rows("pinning", pinning)
        self.assertEqual([row["name"] for row in pinning][1:], ["sh_host_alloc", "cuMemHostAlloc"])
        self.assertEqual(pinning[2]["limit"], pinning[1]["value"])
        self.assertEqual(len(result["groups"]["occupancy"]["rows"]), 64)
        self.assert_rows("occupancy", result["groups"]["occupancy"]["rows"])
        graph = result["groups"]["graph"]
        self.assert_rows("graph", graph["rows"])
        self.assertEqual(graph["notes"], [])
        self.assertEqual(len(graph["rows"]), 9)
        for row in graph["rows"]:
            with self.subTest(row=row["name"]):
                self.assertEqual(row["blocks"], 34)
                self.assertGreater(row["host_seconds"], 0)
                self.assertGreater(row["host_seconds_by_calls"], 0)
                # Each step copies the bytes that do not fit, whichever way it is made.
                for copied in (row["copied_bytes"], row["copied_bytes_by_calls"]):
                    self.assertGreaterEqual(copied, row["model_bytes"] - row["budget_bytes"])
                    self.assertLess(copied, row["model_bytes"])
        text = self.succeed("bench", "--device", "cuda:0", *SMALL, "--only", "graph").out
        self.assertIn("the step by calls", text)

    @unittest.skipUnless(shutil.which("readelf"), "there is no readelf")
    def test_command_links_nothing_of_cuda(self):
        listed = subprocess.run(["readelf", "-d", harness.COMMAND], capture_output=True, text=True, check=True).stdout
        needed = re.findall(r"NEEDED.*\[(.*)\]", listed)
        self.assertIn("libstagehand.so.0", needed)
        self.assertEqual([name for name in needed if "cuda" in name or "hip" in name], [])

    def test_mistakes_are_named(self):
        host = ["bench", "--device", "host"]
        for code, arguments, says in [
            (USAGE, [*host, "--only", "fly"], "'fly' is not a group; the groups are link, pinning"),
            (USAGE, [*host, "--only", "link,,mapping"], "''"),
            (USAGE, [*host, "--bytes", "1MiB"], "'1MiB' is too small; the least is 32MiB"),
            (USAGE, [*host, "--bytes", "many"], "'many'"),
            (USAGE, [*host, "--device-option", "colour=red"], "colour"),
            (USAGE, [*host, "model.gguf"], "model.gguf"),
            (USAGE, ["bench", "--device", "sim", "--only", "streaming,pinning"], "--only pinning: device sim:0"),
            (USAGE, ["bench", "--device", "sim", "--only", "graph"], "--only graph: device sim:0"),
            (DEVICE, ["bench", "--device", "nothing:0"], "nothing"),
            (DEVICE, [*host, "--bytes", "900TiB"], "a third of the host's free memory"),
            (DEVICE, ["bench", "--device", "sim", "--bytes", "900TiB"], "half of the device's free memory"),
            (DEVICE, [*host, "--device-option", "capacity=64KiB", "--device-option", "page=16KiB"], "too small"),
        ]:
            with self.subTest(arguments=arguments):
                self.refuse(code, *arguments, says=[says])

    def test_scratch_folder(self):
        staging = ["bench", "--device", "host", *SMALL, "--only", "staging", "--json"]
        absent = self.folder / "absent"
        self.refuse(OUTPUT, *staging, "--scratch", absent, says=["scratch file", "absent", "No such file"])
        scratch = self.folder / "scratch"
        scratch.mkdir()
        self.succeed(*staging, "--scratch", scratch)
        self.assertEqual(os.listdir(scratch), [])
        self.environment["TMPDIR"] = str(self.folder / "elsewhere")
        self.refuse(OUTPUT, *staging, says=["elsewhere"])

    def test_interrupt_shows_what_was_measured(self):
        process = self.start(*SLOW)
        shown = self.wait_for_line(process, "both ways at once")
        process.send_signal(signal.SIGINT)
        result = self.finish(process)
        self.assertEqual(result.code, INTERRUPTED, result.err)
        self.assertEqual(result.err, "")
        self.assertIn("host to device", shown)
        self.assertIn("interrupted", result.out)

    def test_interrupt_completes_the_json(self):
        process, terminal = self.start_on_terminal(*SLOW, "--json")
        self.wait_on_terminal(terminal, b"streaming")
        process.send_signal(signal.SIGINT)
        result = self.finish(process)
        self.assertEqual(result.code, INTERRUPTED)
        bench = result.json()
        self.assertTrue(bench["interrupted"])
        self.assert_rows("link", bench["groups"]["link"]["rows"])
        self.assertLess(len(bench["groups"]["streaming"]["rows"]), 27)

    def test_documentation_lists_every_key(self):
        page = (SOURCE_ROOT / "docs/command.md").read_text(encoding="utf-8")
        section = page.split("## `stagehand bench`")[1].split("\n## ")[0]
        words = set(re.findall(r"\w+", " ".join(re.findall(r"`([^`]*)`", section))))
        keys = TOP_KEYS | ROW_KEYS | {"rows", "notes", "to_device_bytes_per_second", "to_host_bytes_per_second"}
        self.assertEqual(keys.union(*MORE_KEYS.values()) - words, set())


if __name__ == "__main__":
    harness.main()
