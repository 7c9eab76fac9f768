"""`stagehand plan`."""

import json
import math
import os
import pathlib
import re
import unittest
import xml.etree.ElementTree as ElementTree

import harness
import model_files
from harness import CommandTest, DEVICE, MODEL, OUTPUT, USAGE

LINK = ["--bandwidth", "1GB/s"]


class PlanTest(CommandTest):
    def plan(self, *arguments):
        return self.succeed("plan", *arguments, "--json").json()

    def assert_consistent(self, plan):
        parts = plan["block_list"]
        self.assertEqual(plan["blocks"], len(parts))
        self.assertEqual(sum(part["bytes"] for part in parts), plan["model_bytes"])
        self.assertLessEqual(plan["resident_bytes"] + plan["ring_bytes"], plan["budget_bytes"])
        self.assertLessEqual(plan["smallest_budget_bytes"], plan["budget_bytes"])
        self.assertGreaterEqual(plan["bytes_per_step"], plan["bound_bytes_per_step"])
        # The factor allows for times that are rounded to nanoseconds.
        self.assertGreaterEqual(plan["plan_bound_ms"], plan["bound_ms"] * 0.999)
        self.assertGreaterEqual(plan["step_ms"], plan["plan_bound_ms"] * 0.999)
        self.assertEqual(plan["resident_blocks"] + plan["streamed_blocks"], plan["blocks"])
        for part in parts:
            self.assertEqual(part["resident_bytes"] + part["streamed_bytes"], part["bytes"], part)

    def test_quarter(self):
        plan = self.plan(self.layered_model(), "--budget", "25%", *LINK)
        self.assert_consistent(plan)
        size = 12 * (1 << 20) + 64
        self.assertEqual(plan["model_bytes"], size)
        self.assertEqual(
            plan["budget_bytes"],
            size // 4 // plan["page_bytes"] * plan["page_bytes"]
            if plan["budget_bytes"] % plan["page_bytes"] == 0
            else size // 4,
        )
        self.assertEqual(plan["link_bytes_per_second"], 10**9)
        self.assertFalse(plan["link_measured"])
        self.assertGreater(plan["streamed_blocks"], 0)
        self.assertTrue(math.isclose(plan["bound_ms"], (size - plan["budget_bytes"]) / 1e6, rel_tol=1e-3))

    def test_bound_of_plans_stands_beside_that_of_any_policy(self):
        # Large pages for the memory that turns over: whole pages alone cost a part of a step.
        model = self.layered_model(layers=20, layer_bytes=423 << 10, table_bytes=64)
        options = [model, "--budget", "85%", *LINK, "--device", "sim", "--device-option", "granularity=64KiB"]
        options += ["--device-option", "largest_page=64KiB"]
        plan = self.plan(*options, "--compute-ms", "1.3")
        self.assert_consistent(plan)
        self.assertGreater(plan["plan_bound_ms"], 1.1 * plan["bound_ms"])
        out = self.succeed("plan", *options, "--compute-ms", "1.3").out
        line = next(line for line in out.splitlines() if "bound of plans" in line)
        self.assertIn("no plan of whole pages is faster", line)

    def test_compute_is_a_floor(self):
        plan = self.plan(self.layered_model(), "--budget", "25%", *LINK, "--compute-ms", "100")
        self.assert_consistent(plan)
        self.assertEqual(plan["compute_ms"], 100)
        self.assertTrue(math.isclose(plan["bound_ms"], 100, rel_tol=1e-3))

    def test_forward_backward_costs_more_than_forward(self):
        model = self.layered_model()
        forward = self.plan(model, "--budget", "25%", *LINK)
        both = self.plan(model, "--budget", "25%", *LINK, "--order", "forward-backward")
        self.assertEqual(both["order"], "forward-backward")
        self.assertGreater(both["bytes_per_step"], forward["bytes_per_step"])

    def test_whole_model_stays_if_it_fits(self):
        plan = self.plan(self.layered_model(), "--budget", "1GiB", *LINK)
        self.assert_consistent(plan)
        self.assertEqual(plan["bytes_per_step"], 0)
        self.assertEqual(plan["resident_blocks"], plan["blocks"])

    def test_larger_blocks_on_request(self):
        model = self.layered_model()
        plan = self.plan(model, "--budget", "50%", *LINK, "--max-block", "4MiB")
        self.assert_consistent(plan)
        # The table, eight layers, the norm.
        self.assertEqual(plan["blocks"], 10)
        fine = self.plan(model, "--budget", "50%", *LINK, "--max-block", "256KiB")
        self.assert_consistent(fine)
        self.assertGreater(fine["blocks"], 40)
        self.assertLess(fine["smallest_budget_bytes"], plan["smallest_budget_bytes"])

    def test_budget_below_the_smallest_names_it(self):
        model = self.layered_model()
        known = self.plan(model, "--budget", "50%", *LINK, "--max-block", "4MiB", "--device", "host")
        smallest = known["smallest_budget_bytes"]
        line = self.refuse(DEVICE, "plan", model, "--budget", "1MiB", *LINK, "--max-block", "4MiB", "--device", "host")
        self.assertIn(str(smallest), line.replace(",", ""))
        self.assertIn("embed", line)

    def test_kinds_get_one_plan(self):
        model = self.layered_model()
        plan = self.plan(model, "--budget", "40%", *LINK, "--kinds", "prefill=100,decode=0.001:10")
        prefill, decode = plan["kinds"]
        self.assertEqual((prefill["name"], decode["name"]), ("prefill", "decode"))
        self.assertAlmostEqual(prefill["weight"], 1 / 11, places=3)
        for kind in plan["kinds"]:
            for step_ms in (kind["step_ms"], kind["alone_ms"]):
                self.assertGreaterEqual(step_ms, 0.999 * kind["bound_ms"])
                self.assertLessEqual(step_ms, 2 * kind["bound_ms"])
        self.assertGreater(prefill["step_ms"], decode["step_ms"])
        for wrong in ("prefill", "=1", "a=x", "a=1:0", "a=1,a=2", "a=-1", "x" * 64 + "=1"):
            self.refuse(USAGE, "plan", model, "--budget", "40%", *LINK, "--kinds", wrong)

    def test_curve_falls_and_ends_at_zero_bytes(self):
        plan = self.plan(self.layered_model(), "--budget", "25%", *LINK, "--curve")
        curve = plan["curve"]
        self.assertGreater(len(curve), 10)
        budgets = [point["budget_bytes"] for point in curve]
        self.assertEqual(budgets, sorted(set(budgets)))
        self.assertIn(plan["budget_bytes"], budgets)
        self.assertEqual(budgets[0], plan["smallest_budget_bytes"])
        self.assertEqual(curve[-1]["bytes_per_step"], 0)
        for point in curve:
            self.assertLessEqual(point["resident_bytes"] + point["ring_bytes"], point["budget_bytes"])
            self.assertGreaterEqual(point["plan_bound_ms"], point["bound_ms"] * 0.999)
            self.assertGreaterEqual(point["step_ms"], point["plan_bound_ms"] * 0.999)
        self.assertGreater(curve[0]["bytes_per_step"], curve[len(curve) // 2]["bytes_per_step"])
        asked = next(point for point in curve if point["budget_bytes"] == plan["budget_bytes"])
        self.assertEqual(asked["step_ms"], plan["step_ms"])
        self.assertEqual(asked["bytes_per_step"], plan["bytes_per_step"])

    def test_picture_is_svg(self):
        model = self.layered_model("a & <b>.safetensors")
        text = self.succeed("plan", model, "--budget", "25%", *LINK, "--svg", "curve.svg").out
        self.assertIn("asked for", text)
        root = ElementTree.parse(self.folder / "curve.svg").getroot()
        names = [element.tag.split("}")[1] for element in root.iter()]
        self.assertGreater(names.count("circle"), 10)
        self.assertIn("polyline", names)
        texts = [element.text for element in root.iter() if element.tag.endswith("}text")]
        self.assertIn("a & <b>.safetensors", texts)

    def test_the_picture_does_not_replace_the_model(self):
        model = self.layered_model()
        before = (self.folder / model).read_bytes()
        self.refuse(USAGE, "plan", model, "--budget", "25%", *LINK, "--svg", model, says=["would replace"])
        self.assertEqual((self.folder / model).read_bytes(), before)

    def test_picture_that_cannot_be_written(self):
        line = self.refuse(
            OUTPUT, "plan", self.layered_model(), "--budget", "25%", *LINK, "--svg", "no/such/folder.svg"
        )
        self.assertIn("no/such/folder.svg", line)
        self.refuse(OUTPUT, "plan", "model.safetensors", "--budget", "25%", *LINK, "--svg", "/dev/full")

    def test_needs_no_device_in_the_simulation(self):
        model = self.layered_model(layers=40, layer_bytes=1 << 18)
        options = "--budget 4MiB --device sim --device-option granularity=64KiB --bandwidth 10GB/s".split()
        plan = self.plan(model, *options)
        self.assert_consistent(plan)
        self.assertEqual(plan["page_bytes"] % 65536, 0)

    def test_link_is_measured_whatever_the_pages_are(self):
        model = self.layered_model()
        for budget in ("2GiB", "8GiB", "10GB", "16GiB", "64GiB"):  # pages of 2 to 32 MiB
            with self.subTest(budget):
                plan = self.plan(model, "--budget", budget, "--device", "sim")
                self.assert_consistent(plan)
                self.assertTrue(
                    math.isclose(plan["link_bytes_per_second"], 55.5e9, rel_tol=0.01), plan["link_bytes_per_second"]
                )

    def test_device_sets_page_and_link(self):
        plan = self.plan(self.layered_model(), "--budget", "25%", "--device", "host")
        self.assertEqual(plan["device"].split(":")[0], "host")
        self.assertTrue(plan["link_measured"])
        self.assertGreater(plan["link_bytes_per_second"], 0)
        slow = self.plan(
            "model.safetensors", "--budget", "25%", "--device", "host", "--device-option", "bandwidth=200000000"
        )
        # The device keeps the bandwidth from above only: a busy machine is slower.
        self.assertGreater(slow["link_bytes_per_second"], 2e7)
        self.assertLessEqual(slow["link_bytes_per_second"], 2.2e8)

    def test_budget_too_small_to_measure_with(self):
        tensors = {f"layers.{i}.w": ("U8", [12000], model_files.random_bytes(12000, i)) for i in range(10)}
        model = model_files.write_safetensors(self.folder / "small.safetensors", tensors)
        plan = self.plan(model, "--budget", "12KiB", "--device", "host", "--max-block", "12KiB")
        self.assert_consistent(plan)
        self.assertGreater(plan["link_bytes_per_second"], 0)
        options = "--budget 12KiB --max-block 12KiB --device host --steps 3 --verify --json".split()
        run = self.succeed("run", model, *options).json()
        self.assertEqual(run["verified_blocks"], 3 * run["blocks"])
        self.assertGreater(run["copy_bytes_per_second"], 0)

    def test_table_joins_like_neighbours(self):
        model = self.layered_model(layers=30, layer_bytes=1 << 16, table_bytes=1 << 16)
        joined = self.succeed("plan", model, "--budget", "1GiB", *LINK).out
        self.assertIn("layers.0 … layers.29", joined)
        each = self.succeed("plan", model, "--budget", "1GiB", *LINK, "--all-blocks").out
        self.assertIn("\nlayers.17 ", each)
        self.assertGreater(each.count("\n"), joined.count("\n") + 25)

    def test_table_accounts_for_what_stays(self):
        # Blocks of one size may have different numbers of pages if a page is a large part of a block.
        model = self.layered_model(layers=16, layer_bytes=5 << 20, table_bytes=1 << 20)
        arguments = ["plan", model, "--budget", "40%", "--device", "sim", *LINK, "--max-block", "6MiB"]
        plan = self.plan(*arguments[1:])
        stays = sum(block["resident_bytes"] for block in plan["block_list"])
        self.assertGreater(stays, 0)
        rows = re.findall(r" (\d+)  +([\d.]+) MiB .* ([\d.]+) %  ", self.succeed(*arguments).out)
        self.assertEqual(sum(int(count) for count, _, _ in rows), plan["blocks"] - 1)  # but for the norm's few bytes
        told = sum(int(count) * float(size) * (1 << 20) * float(share) / 100 for count, size, share in rows)
        self.assertLess(abs(told - stays), stays / 50)

    def experts_model(self, layers=3, experts=8, expert_bytes=1 << 18):
        tensors = {"embed.weight": ("U8", [1 << 18], model_files.random_bytes(1 << 18, 1))}
        for layer in range(layers):
            tensors[f"layers.{layer}.attn.weight"] = ("U8", [1 << 18], model_files.random_bytes(1 << 18, layer))
            tensors[f"layers.{layer}.mlp.gate.weight"] = ("U8", [4096], model_files.random_bytes(4096, layer))
            for expert in range(experts):
                for part in ("w1", "w2"):
                    name = f"layers.{layer}.mlp.experts.{expert}.{part}.weight"
                    tensors[name] = ("U8", [expert_bytes // 2], model_files.random_bytes(expert_bytes // 2, expert))
        return model_files.write_safetensors(self.folder / "experts.safetensors", tensors)

    def test_blocks_outside_the_order_have_memory_in_the_plan(self):
        model = self.experts_model()
        arguments = [model, "--budget", "4MiB", "--max-block", "512KiB", "--device", "host", *LINK]
        every = self.plan(*arguments)
        self.assertEqual((every["unordered_blocks"], every["unordered_bytes"]), (0, 0))
        self.assertEqual(every["expert_tensors"], 48)
        plan = self.plan(*arguments, "--unordered", "*.experts.*")
        self.assertEqual(plan["unordered_blocks"], 24)
        self.assertEqual(plan["unordered_block_bytes"], 24 << 18)
        self.assertGreaterEqual(plan["unordered_bytes"], 1 << 18)
        self.assertLess(plan["unordered_bytes"], 4 << 20)
        self.assertEqual(plan["model_bytes"], every["model_bytes"])
        self.assertEqual(plan["blocks"], plan["resident_blocks"] + plan["streamed_blocks"] + 24)
        self.assertLessEqual(
            plan["resident_bytes"] + plan["ring_bytes"] + plan["unordered_bytes"], plan["budget_bytes"]
        )
        self.assertLess(plan["bytes_per_step"], every["bytes_per_step"])
        outside = [block["name"] for block in plan["block_list"] if block["unordered"]]
        self.assertEqual(outside[:2], ["layers.0.mlp.experts.0", "layers.0.mlp.experts.1"])
        self.assertEqual(self.plan(*arguments, "--unordered", "*.experts")["unordered_blocks"], 24)
        self.assertEqual(
            self.plan(*arguments, "--unordered", "layers.0.*.experts.?", "--unordered", "layers.1.mlp.experts.3.*")[
                "unordered_blocks"
            ],
            9,
        )

    def test_table_tells_of_blocks_outside_the_order(self):
        options = "--budget 4MiB --max-block 512KiB --device host".split()
        arguments = ["plan", self.experts_model(), *options, *LINK]
        out = self.succeed(*arguments, "--unordered", "*.experts.*").out
        self.assertRegex(
            out, r"\n  unordered +[\d.]+ [KM]iB +shared by 24 blocks outside the order, 6.00 MiB together\n"
        )
        self.assertRegex(out, r"layers.0.mlp.experts.0 … layers.0.mlp.experts.7 +8 .* unordered\n")
        self.assertIn("the bound do not count loads of the unordered blocks", out)
        self.assertNotIn("Note:", out)

    def test_names_of_experts_are_noticed(self):
        arguments = ["--budget", "4MiB", "--device", "host", *LINK]
        out = self.succeed("plan", self.experts_model(), *arguments).out
        self.assertIn("Note: 48 tensors have names like an expert of a mixture (layers.0.mlp.experts.0.w1.weight)", out)
        self.assertIn("plan with --unordered '*.experts.*'", out)
        self.assertNotIn("Note:", self.succeed("plan", self.layered_model(), *arguments).out)

    def test_patterns_that_cannot_be_meant(self):
        arguments = ["plan", self.layered_model(), "--budget", "25%", *LINK, "--unordered"]
        self.refuse(
            USAGE, *arguments, "*.expert.*", says=["--unordered '*.expert.*'", "no tensor of model.safetensors"]
        )
        self.refuse(USAGE, *arguments, "*", says=["--unordered '*'", "all tensors of model.safetensors match"])

    def test_budget_beyond_what_any_device_has(self):
        # A file with a hole, so that a model of 4 GiB takes no room on the disk. Plans do not read the weights.
        header, part = {}, 512 << 20
        for i in range(8):
            header[f"layers.{i}.w"] = {"dtype": "U8", "shape": [part], "data_offsets": [i * part, (i + 1) * part]}
        text = json.dumps(header).encode()
        model = model_files.write_raw_safetensors(self.folder / "large.safetensors", text)
        os.truncate(model, 8 + len(text) + 8 * part)
        for budget in ("8GiB", "8EiB", "9EiB", "18446744073709551615"):
            with self.subTest(budget):
                plan = self.plan(model, "--budget", budget, "--device", "host", *LINK)
                self.assertEqual(plan["bytes_per_step"], 0)
                self.assertEqual(plan["resident_blocks"], plan["blocks"])

    def test_sharded_and_gguf(self):
        model_files.write_sharded(self.folder / "shards", model_files.layered_tensors(4, 1 << 18, 1 << 18), 3)
        for path in ("shards", "shards/model.safetensors.index.json"):
            plan = self.plan(path, "--budget", "50%", *LINK)
            self.assert_consistent(plan)
            self.assertEqual(plan["files"], 3)
            self.assertEqual(plan["tensors"], 10)
        model_files.write_gguf(self.folder / "tiny.gguf", model_files.layered_gguf_tensors(4))
        plan = self.plan("tiny.gguf", "--budget", "50%", *LINK)
        self.assert_consistent(plan)
        self.assertEqual(plan["format"], "GGUF")
        self.assertEqual(plan["tensors"], 10)

    def test_path_that_is_not_utf8(self):
        name = b"mod\xffel.safetensors"
        path = pathlib.Path(self.layered_model())
        try:
            path.rename(self.folder / name.decode("utf-8", "surrogateescape"))
        except OSError:
            raise unittest.SkipTest("the file system wants UTF-8")
        process = self.start("plan", name.decode("utf-8", "surrogateescape"), "--budget", "25%", *LINK, "--json")
        self.assertEqual(self.finish(process).json()["blocks"] > 0, True)

    def test_headers_may_be_limited(self):
        line = self.refuse(MODEL, "plan", self.layered_model(), "--budget", "25%", *LINK, "--max-header", "100")
        self.assertIn("header", line)


if __name__ == "__main__":
    harness.main()
