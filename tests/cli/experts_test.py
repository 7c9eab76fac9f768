"""`stagehand plan --experts` and `stagehand run --experts`: traces of the experts that tokens used."""

import json
import random
import re
import unittest

import harness
import model_files
from harness import CommandTest, DEVICE, MODEL, USAGE

LINK = ["--bandwidth", "1GB/s"]
LAYERS, EXPERTS, EXPERT_BYTES = (1, 2, 5), 8, 1 << 18


def skewed_calls(tokens, seed=5):
    """Half of the calls of a layer use experts 0 and 1."""
    chosen = random.Random(seed)
    for _ in range(tokens):
        for layer in LAYERS:
            few = [0, 1] if chosen.random() < 0.5 else sorted(chosen.sample(range(EXPERTS), 2))
            yield {"layer": layer, "experts": few}


class ExpertsTest(CommandTest):
    def dense(self):
        tensors = {"embed.weight": ("U8", [1 << 18], model_files.random_bytes(1 << 18, 1))}
        for layer in range(6):
            tensors[f"layers.{layer}.attn.weight"] = ("U8", [1 << 16], model_files.random_bytes(1 << 16, layer))
        return tensors

    def listed_model(self):
        tensors = self.dense()
        for layer in LAYERS:
            for expert in range(EXPERTS):
                for part in ("w1", "w2"):
                    data = model_files.random_bytes(EXPERT_BYTES // 2, f"{layer} {expert} {part}")
                    tensors[f"layers.{layer}.mlp.experts.{expert}.{part}.weight"] = ("U8", [len(data)], data)
        return model_files.write_safetensors(self.folder / "listed.safetensors", tensors)

    def stacked_model(self, down_bytes=lambda layer: EXPERT_BYTES // 2):
        tensors = self.dense()
        for layer in LAYERS:
            for part, size in (("gate_up_proj", EXPERT_BYTES // 2), ("down_proj", down_bytes(layer))):
                data = model_files.random_bytes(EXPERTS * size, f"{layer} {part}")
                tensors[f"layers.{layer}.mlp.experts.{part}"] = ("U8", [EXPERTS, size], data)
            tensors[f"layers.{layer}.mlp.experts.scale"] = ("F32", [1], b"\0\0\0\0")  # of all experts
        return model_files.write_safetensors(self.folder / "stacked.safetensors", tensors)

    def gguf_model(self):
        tensors = {"token_embd.weight": (model_files.GGUF_F32, [64, 64], model_files.random_bytes(1 << 14, 1))}
        for layer in LAYERS:
            tensors[f"blk.{layer}.attn_q.weight"] = (
                model_files.GGUF_F32,
                [64, 64],
                model_files.random_bytes(1 << 14, 2),
            )
            data = model_files.random_bytes(EXPERTS * 64 * 128 // 32 * 34, layer)
            tensors[f"blk.{layer}.ffn_up_exps.weight"] = (model_files.GGUF_Q8_0, [64, 128, EXPERTS], data)
        return model_files.write_gguf(self.folder / "experts.gguf", tensors)

    def trace(self, calls):
        path = self.folder / "trace.jsonl"
        path.write_text("".join(json.dumps(call) + "\n" for call in calls))
        return path

    def plan(self, model, trace, *arguments, budget="4MiB"):
        arguments = [*arguments, "--budget", budget, "--device", "host", *LINK, "--experts", trace, "--json"]
        return self.succeed("plan", model, *arguments).json()

    def test_plan_tells_hits_by_layer(self):
        trace = self.trace(skewed_calls(60))
        plan = self.plan(self.listed_model(), trace)
        experts = plan["experts"]
        self.assertEqual((experts["experts"], experts["expert_bytes"]), (24, 24 * EXPERT_BYTES))
        self.assertEqual((experts["tokens"], experts["uses"]), (60, 60 * 3 * 2))
        self.assertEqual([layer["layer"] for layer in experts["layers"]], list(LAYERS))
        self.assertEqual([layer["uses"] for layer in experts["layers"]], [120, 120, 120])
        self.assertEqual(sum(layer["hits"] for layer in experts["layers"]), experts["hits"])
        for layer in experts["layers"]:
            self.assertGreater(layer["hit_rate"], 0.5)
        # All but the experts takes 640 KiB, and the rest are slots.
        self.assertEqual(experts["slots"], ((4 << 20) - (640 << 10)) // EXPERT_BYTES)
        misses = experts["uses"] - experts["hits"]
        self.assertEqual(experts["evictions"], misses - experts["slots"])
        self.assertEqual(experts["missed_bytes_per_token"], misses * EXPERT_BYTES // 60)
        self.assertEqual(experts["bytes_copied"], misses * EXPERT_BYTES)
        self.assertGreaterEqual(experts["token_ms"] * 60, experts["bytes_copied"] / 1e6)
        # As blocks, each step copies what does not fit.
        self.assertGreater(plan["bytes_per_step"], experts["missed_bytes_per_token"])
        self.assertGreater(plan["step_ms"], experts["token_ms"])
        self.assertEqual(self.plan(self.listed_model(), trace), plan)

    def test_an_expert_that_stays_is_missed_once(self):
        calls = [{"layer": layer, "experts": [3]} for _ in range(10) for layer in LAYERS]
        experts = self.plan(self.stacked_model(), self.trace(calls))["experts"]
        self.assertEqual((experts["uses"], experts["hits"], experts["evictions"]), (30, 27, 0))
        self.assertEqual([layer["hits"] for layer in experts["layers"]], [9, 9, 9])

    def test_a_token_ends_where_the_layer_does_not_grow(self):
        calls = [{"layer": layer, "experts": [0]} for layer in (1, 5, 2, 5, 5, 1)]
        self.assertEqual(self.plan(self.stacked_model(), self.trace(calls))["experts"]["tokens"], 4)

    def test_experts_of_all_layouts(self):
        trace = self.trace(skewed_calls(5))
        listed = self.plan(self.listed_model(), trace)["experts"]
        stacked = self.plan(self.stacked_model(), trace)["experts"]
        self.assertEqual(stacked["layers"], listed["layers"])
        self.assertEqual(stacked["expert_bytes"], listed["expert_bytes"])
        gguf = self.plan(self.gguf_model(), trace, budget="400KiB")["experts"]
        self.assertEqual((gguf["experts"], gguf["expert_bytes"]), (24, 24 * 64 * 128 // 32 * 34))
        self.assertEqual(gguf["uses"], listed["uses"])

    def test_layers_of_other_sizes_have_a_set_each(self):
        model = self.stacked_model(down_bytes=lambda layer: EXPERT_BYTES // (1 if layer == 5 else 2))
        experts = self.plan(model, self.trace(skewed_calls(30)), budget="5MiB")["experts"]
        sizes = [(each["members"], each["slot_bytes"]) for each in experts["sets"]]
        self.assertEqual(sizes, [(16, EXPERT_BYTES), (8, EXPERT_BYTES * 3 // 2)])
        self.assertEqual(sum(each["slots"] for each in experts["sets"]), experts["slots"])
        self.assertEqual(experts["uses"], 180)

    def test_run_measures_what_the_plan_tells(self):
        trace = self.trace(skewed_calls(40))
        for model, budget in (
            (self.listed_model(), "4MiB"),
            (self.stacked_model(), "2MiB"),
            (self.gguf_model(), "30%"),
        ):
            arguments = ["--budget", budget, "--device", "host", "--experts", trace, "--verify", "--json"]
            run = self.succeed("run", model, *arguments).json()
            measured = run["experts"]
            planned = measured.pop("planned")
            for name in ("tokens", "slots", "uses", "hits", "evictions", "missed_bytes_per_token", "layers", "sets"):
                self.assertEqual(measured[name], planned[name], (model, name))
            self.assertEqual(measured["bytes_copied"], planned["bytes_copied"])
            self.assertEqual((run["steps"], measured["tokens"]), (40, 40))
            self.assertLess(measured["hits"], measured["uses"])
            self.assertEqual(run["verified_blocks"], run["blocks"] * 40 + measured["uses"])
            self.assertEqual(run["mismatched_blocks"], 0)
            self.assertEqual(self.plan(model, trace, budget=budget)["experts"]["layers"], planned["layers"])

    def test_tables(self):
        options = [
            self.listed_model(),
            "--budget",
            "4MiB",
            "--device",
            "host",
            "--experts",
            self.trace(skewed_calls(20)),
        ]
        out = self.succeed("plan", *options, *LINK).out
        self.assertRegex(out, r"\n5 +8 +256 KiB +40 +\d+ +[\d.]+ %\n")
        self.assertRegex(out, r"\n  slots +13 +\d+ evictions\n")
        self.assertNotIn("--unordered", out)
        out = self.succeed("run", *options, "--verify", "--quiet").out
        rates = re.findall(r"\n\d +8 +256 KiB +40 +\d+ +([\d.]+) % +([\d.]+) %", out)
        self.assertEqual([measured for measured, _ in rates], [planned for _, planned in rates])
        self.assertEqual(len(rates), 3)
        self.assertRegex(out, r"all equal +\d+ blocks x 20 steps, and 120 experts\n")

    def test_wrong_lines_are_named(self):
        model = self.listed_model()
        good = '{"layer": 1, "experts": [0]}\n'
        for text, says in [
            ("", "trace.jsonl holds no call of a layer"),
            ("\n \n", "trace.jsonl holds no call of a layer"),
            (good + "layer 2\n", "trace.jsonl: line 2 is not a JSON object: 'layer 2'"),
            (good + '\n{"layer": 2, "exp', "trace.jsonl: the last line is cut off, after 1 calls"),
            ("[1, 2]\n", "line 1 is not a JSON object"),
            ('{"experts": [0]}\n', 'line 1: "layer" is missing'),
            (
                good + '{"layer": 3, "experts": [0]}\n',
                'line 2: "layer" is 3, but the model has experts in 3 layers from',
            ),
            ('{"layer": -1, "experts": [0]}\n', 'line 1: "layer" is not a whole number'),
            (
                good * 2 + '{"layer": 1, "experts": [7, 8]}\n',
                'line 3: "experts" has 8, but the experts of layer 1 are 0',
            ),
            ('{"layer": 1, "experts": [0.5]}\n', 'line 1: "experts" has 0.5, but'),
            ('{"layer": 1, "experts": [2, 2]}\n', 'line 1: "experts" has 2 twice'),
            ('{"layer": 1, "experts": []}\n', 'line 1: "experts" names no expert'),
            ('{"layer": 1}\n', 'line 1: "experts" names no expert'),
            ('{"layer": 1, "experts": 4}\n', 'line 1: "experts" is not a list'),
        ]:
            trace = self.folder / "trace.jsonl"
            trace.write_text(text)
            for command in (["plan", *LINK], ["run"]):
                arguments = [model, "--budget", "4MiB", "--device", "host", "--experts", trace]
                self.refuse(MODEL, command[0], *arguments, *command[1:], says=[says])
        self.refuse(
            MODEL, "plan", model, "--budget", "4MiB", "--experts", "absent", *LINK, says=["absent: No such file"]
        )

    def test_wrong_models_and_options_are_named(self):
        trace = self.trace(skewed_calls(1))
        plain = ["plan", self.layered_model(), "--budget", "4MiB", "--device", "host", *LINK, "--experts", trace]
        self.refuse(USAGE, *plain, says=["no layer of model.safetensors has tensors of experts by name"])
        options = [self.listed_model(), "--budget", "4MiB", "--device", "host", "--experts", trace]
        for more, says in [
            (["--kinds", "decode=1"], "--kinds has no meaning with --experts"),
            (["--unordered", "*"], "--unordered has no meaning with --experts"),
            (["--order", "forward-backward"], "--order forward-backward has no meaning with --experts"),
        ]:
            self.refuse(USAGE, "plan", *options, *more, says=says.split(" ", 1))
        self.refuse(USAGE, "run", *options, "--steps", "3", says=["--steps", "has no meaning with --experts"])
        self.refuse(USAGE, "run", *options[:-2], says=["--steps"])
        # The slots of a call do not fit.
        big = self.trace([{"layer": 1, "experts": list(range(EXPERTS))}])
        tight = ["plan", self.listed_model(), "--budget", "1MiB", "--device", "host", *LINK, "--experts", big]
        self.refuse(DEVICE, *tight, says=["budget"])

    def test_experts_that_differ_are_refused(self):
        tensors = self.dense()
        for expert, size in ((0, 1 << 12), (1, 1 << 13)):
            tensors[f"layers.0.experts.{expert}.w"] = ("U8", [size], model_files.random_bytes(size, expert))
        model = model_files.write_safetensors(self.folder / "uneven.safetensors", tensors)
        arguments = ["plan", model, "--budget", "1MiB", "--device", "host", *LINK, "--experts", self.trace([])]
        self.refuse(MODEL, *arguments, says=["expert 1 of layers.0 has 8192 bytes, but expert 0 has 4096"])
        tensors = self.dense()
        for stack in ("encoder", "decoder"):
            tensors[f"{stack}.0.experts.up"] = ("U8", [2, 64], bytes(128))
        model = model_files.write_safetensors(self.folder / "two.safetensors", tensors)
        self.refuse(MODEL, "plan", model, *arguments[2:], says=["a trace could not tell which layer 0 it means"])


if __name__ == "__main__":
    harness.main()
