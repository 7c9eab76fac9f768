"""`stagehand plan --training`."""

import math
import re
import xml.etree.ElementTree as ElementTree

import harness
import model_files
from harness import CommandTest, MODEL, OUTPUT, USAGE

GIB = 1 << 30
# The step that docs/command.md shows.
STEP = ["--layers", "16", "--hidden-size", "4096", "--seq-len", "8192", "--step-ms", "325"]
LINK = ["--bandwidth", "55.5GB/s", "--memory-bandwidth", "4TB/s"]


class PlanTrainingTest(CommandTest):
    def plan(self, *arguments):
        return self.succeed("plan", "--training", *arguments, "--json").json()

    def assert_consistent(self, plan):
        saved = plan["plain"]["kept_bytes"]
        for arm in (plan["plain"], plan["checkpointed"], plan["planned"]):
            self.assertEqual(arm["kept_bytes"] + arm["spilled_bytes"] + arm["recomputed_bytes"], saved)
            self.assertEqual(max(size for _, size in arm["memory"]), arm["peak_bytes"])
            times = [ns for ns, _ in arm["memory"]]
            self.assertEqual(times, sorted(times))
            self.assertLessEqual(times[-1], arm["step_ms"] * 1e6 + 1)
            # Checkpoints compute products of matrices again, which no plan does.
            if arm is not plan["checkpointed"]:
                self.assertGreaterEqual(arm["step_ms"], arm["bound_ms"] * 0.999999)
            # The step ends with the weights and their gradients.
            self.assertEqual(arm["memory"][-1][1], 2 * plan["weight_bytes"])

    def test_worked_example(self):
        plan = self.plan(*STEP, *LINK, "--peak", "13.4GiB")
        self.assert_consistent(plan)
        self.assertEqual(plan["weight_bytes"], 6 * GIB)
        # 16 times the bytes of a layer's input, and the sums of the attention.
        self.assertEqual(plan["plain"]["kept_bytes"], 16 * (16 * 8192 * 4096 * 2 + 8192 * 32 * 4))
        self.assertAlmostEqual(plan["plain"]["step_ms"], 325, places=3)
        # Measured: 22.96 GiB; 1.24 times and 13.38 GiB with checkpoints. The forward takes 108 ms.
        self.assertAlmostEqual(plan["plain"]["peak_bytes"] / GIB, 22.96, delta=0.03 * 22.96)
        self.assertAlmostEqual(plan["checkpointed"]["step_ms"] / 325, 1.24, delta=0.01)
        self.assertAlmostEqual(plan["checkpointed"]["peak_bytes"] / GIB, 13.38, delta=0.03 * 13.38)
        self.assertAlmostEqual(plan["forward_ms"], 108, delta=1.5)
        planned = plan["planned"]
        self.assertTrue(plan["meets_target"])
        self.assertLessEqual(planned["peak_bytes"], 13.4 * GIB)
        self.assertLess(planned["step_ms"] / 325, 1.01)
        self.assertAlmostEqual(planned["spilled_bytes"] / GIB, 5.5, delta=0.2)

    def test_targets(self):
        plan = self.plan(*STEP, *LINK, "--slowdown", "1")
        self.assert_consistent(plan)
        self.assertAlmostEqual(plan["planned"]["step_ms"], 325, places=3)
        self.assertAlmostEqual((plan["plain"]["peak_bytes"] - plan["planned"]["peak_bytes"]) / GIB, 5.5, delta=0.2)
        self.assertLessEqual(plan["least_peak_bytes"], plan["planned"]["peak_bytes"])
        # Without a target: the peak of the step with checkpoints.
        plan = self.plan(*STEP, *LINK)
        self.assertEqual(plan["target_peak_bytes"], plan["checkpointed"]["peak_bytes"])
        self.assertLessEqual(plan["planned"]["peak_bytes"], plan["checkpointed"]["peak_bytes"])
        self.assertLess(plan["planned"]["step_ms"], plan["checkpointed"]["step_ms"])
        plan = self.plan(*STEP, *LINK, "--peak", "7GiB")
        self.assertFalse(plan["meets_target"])
        self.assertGreater(plan["planned"]["peak_bytes"], 7 * GIB)

    def test_sizes_count(self):
        plain = self.plan(*STEP, *LINK)
        tokens = 8192 * 2
        gated = self.plan(*STEP, *LINK, "--gated-mlp", "--intermediate-size", "14336", "--kv-heads", "8")
        self.assert_consistent(gated)
        self.assertEqual(gated["weight_bytes"], 16 * 2 * (4096 * (2 * 4096 + 2 * 1024) + 3 * 4096 * 14336))
        # Both norms' inputs and outputs and the attention's, queries, keys and values, and four of the MLP.
        widths = 5 * 4096 + (4096 + 2 * 1024) + 4 * 14336
        self.assertEqual(gated["plain"]["kept_bytes"], 16 * (tokens * widths + 8192 * 32 * 4))
        words = self.plan(*STEP, *LINK, "--vocab-size", "32000")
        self.assert_consistent(words)
        self.assertEqual(words["weight_bytes"], plain["weight_bytes"] + 2 * 2 * 32000 * 4096)
        self.assertGreater(words["plain"]["peak_bytes"], plain["plain"]["peak_bytes"] + 2 * 2 * 32000 * 8192)
        double = self.plan(*STEP, *LINK, "--batch-size", "2", "--dtype", "fp32")
        self.assert_consistent(double)
        self.assertEqual(double["weight_bytes"], 2 * plain["weight_bytes"])
        self.assertEqual(double["plain"]["kept_bytes"], 2 * 16 * (16 * 8192 * 4096 * 4 + 8192 * 32 * 4))
        twice = self.plan(*STEP[:-2], *LINK, "--flops", f"{plain['flops'] / 2e12}TFLOPS")
        self.assertAlmostEqual(twice["flops"], plain["flops"] / 2, delta=1e9)
        self.assertGreater(twice["forward_ms"], 1.8 * plain["forward_ms"])

    def llama(self, layers=3, name="llama.safetensors"):
        tensors = {"model.embed_tokens.weight": ("U8", [100, 64])}
        for layer in range(layers):
            for part, shape in {
                "self_attn.q_proj": [64, 64],
                "self_attn.k_proj": [16, 64],
                "self_attn.v_proj": [16, 64],
                "self_attn.o_proj": [64, 64],
                "mlp.gate_proj": [192, 64],
                "mlp.up_proj": [192, 64],
                "mlp.down_proj": [64, 192],
                "input_layernorm": [64],
            }.items():
                tensors[f"model.layers.{layer}.{part}.weight"] = ("U8", shape)
        return self.write(name, tensors)

    def write(self, name, tensors):
        def size(shape):
            return shape[0] * (shape[1] if len(shape) > 1 else 1)

        contents = {key: (kind, shape, bytes(size(shape))) for key, (kind, shape) in tensors.items()}
        return model_files.write_safetensors(self.folder / name, contents)

    def test_sizes_of_a_model(self):
        step = ["--seq-len", "128", "--flops", "1TFLOPS", *LINK]
        of_model = self.plan(self.llama(), "--heads", "8", *step)
        self.assert_consistent(of_model)
        sizes = ["--layers", "3", "--hidden-size", "64", "--heads", "8", "--kv-heads", "2", "--intermediate-size"]
        of_options = self.plan(*sizes, "192", "--gated-mlp", "--vocab-size", "100", *step)
        self.assertIn("llama.safetensors", of_model.pop("model"))
        of_options.pop("model")
        self.assertEqual(of_model, of_options)
        fused = {"transformer.wte.weight": ("U8", [100, 64])}
        for layer in range(2):
            parts = {"attn.c_attn": [64, 192], "attn.c_proj": [64, 64], "mlp.c_fc": [64, 256], "mlp.c_proj": [256, 64]}
            for part, shape in (parts | {"ln_1": [64]}).items():
                fused[f"transformer.h.{layer}.{part}.weight"] = ("U8", shape)
        plan = self.plan(self.write("gpt2.safetensors", fused), *step)
        shape = [
            plan[name] for name in ("layers", "hidden_size", "heads", "kv_heads", "intermediate_size", "gated_mlp")
        ]
        self.assertEqual(shape, [2, 64, 1, 1, 256, False])

    def test_sizes_of_joined_matrices_and_of_gguf(self):
        step = ["--seq-len", "128", "--flops", "1TFLOPS", "--heads", "8", *LINK]
        wanted = self.plan(self.llama(2), *step)
        wanted.pop("model")
        joined = {"model.embed_tokens.weight": ("U8", [100, 64])}
        named = {"token_embd.weight": [64, 100]}
        for layer in range(2):
            parts = {"self_attn.qkv_proj": [96, 64], "self_attn.o_proj": [64, 64], "mlp.gate_up_proj": [384, 64]}
            for part, shape in (parts | {"mlp.down_proj": [64, 192], "input_layernorm": [64]}).items():
                joined[f"model.layers.{layer}.{part}.weight"] = ("U8", shape)
            parts = {"attn_q": [64, 64], "attn_k": [64, 16], "attn_v": [64, 16], "attn_output": [64, 64]}
            parts |= {"ffn_gate": [64, 192], "ffn_up": [64, 192], "ffn_down": [192, 64], "attn_norm": [64]}
            named |= {f"blk.{layer}.{part}.weight": shape for part, shape in parts.items()}
        contents = {name: (0, shape, bytes(4 * math.prod(shape))) for name, shape in named.items()}
        gguf = model_files.write_gguf(self.folder / "model.gguf", contents)
        for model in (self.write("phi.safetensors", joined), gguf):
            plan = self.plan(model, *step)
            plan.pop("model")
            self.assertEqual(plan, wanted)

    def test_models_that_are_no_transformer(self):
        step = ["--seq-len", "128", "--flops", "1TFLOPS", *LINK]
        self.refuse(MODEL, "plan", self.layered_model(), "--training", *step, says=["--hidden-size"])
        experts = {"model.layers.0.mlp.experts.0.up_proj.weight": ("U8", [64, 64])}
        line = self.refuse(MODEL, "plan", self.write("experts.safetensors", experts), "--training", *step)
        self.assertIn("expert", line)
        self.refuse(USAGE, "plan", self.llama(), "--training", "--heads", "7", *step, says=["--heads"])

    def test_report_and_picture(self):
        text = self.succeed("plan", "--training", *STEP, *LINK, "--peak", "13.4GiB", "--svg", "memory.svg").out
        for name in ("plain", "checkpointed", "planned"):
            self.assertRegex(text, rf"\n{name} +\d+ ms +\d\.\d\d\d × +\d\.\d\d\d ×")
            self.assertRegex(text, rf"\n{name}: [\d.]+ GiB at most")
        self.assertIn("target a peak of 13.4 GiB met", re.sub(" +", " ", text))
        root = ElementTree.parse(self.folder / "memory.svg").getroot()
        lines = [element for element in root.iter() if element.tag.endswith("}polyline")]
        self.assertEqual(len(lines), 3)
        self.refuse(OUTPUT, "plan", "--training", *STEP, *LINK, "--svg", "no/such/folder.svg")
        # The memory bandwidth is told to be assumed if it is not given.
        self.assertIn("assumed", self.succeed("plan", "--training", *STEP, *LINK[:2]).out)

    def test_link_is_measured(self):
        plan = self.plan(*STEP, "--device", "host", "--device-option", "bandwidth=1GB/s")
        self.assertEqual(plan["device"], "host:0")
        self.assertLess(plan["to_host_bytes_per_second"], 1.1e9)
        self.assertIsNone(self.plan(*STEP, *LINK)["device"])

    def test_mistakes_are_named(self):
        for arguments, says in [
            ([], "--layers: is required with --training, unless there is a MODEL"),
            (["--layers", "2"], "--hidden-size: is required with --training"),
            (STEP[:4] + STEP[6:], "--seq-len: is required with --training"),
            (STEP[:6], "--flops: or --step-ms is required"),
            ([*STEP, "--flops", "1TFLOPS"], "--flops: or --step-ms is required with --training, and only one"),
            ([*STEP, "--budget", "1GB"], "--budget: has no meaning with --training"),
            ([*STEP, "--curve"], "--curve: has no meaning with --training"),
            ([*STEP, "--peak", "1GB", "--slowdown", "2"], "--slowdown: is given beside --peak"),
            ([*STEP, "--peak", "0"], "--peak: '0' is no memory at all"),
            ([*STEP, "--slowdown", "0.9"], "--slowdown: '0.9' is not a number of times from 1 to 1000"),
            ([*STEP, "--slowdown", "nan"], "--slowdown: 'nan'"),
            ([*STEP[:6], "--flops", "5"], "--flops: '5' is not a speed of arithmetic, such as 500TFLOPS"),
            ([*STEP[:6], "--flops", "-5TFLOPS"], "--flops: '-5TFLOPS'"),
            ([*STEP[:6], "--step-ms", "0.01", *LINK], "--step-ms: 0.01 ms are less than the device's memory needs"),
            (["--layers", "0", *STEP[2:]], "--layers: '0' is not a whole number"),
            ([*STEP, "--heads", "-1"], "--heads: '-1' is not a whole number from 1 to 10000000"),
            ([*STEP, "--heads", "3", *LINK], "--heads: 3 heads do not divide --hidden-size 4096"),
            ([*STEP, "--kv-heads", "64", *LINK], "--kv-heads: 64 are more than the 32 heads"),
            ([*STEP, "--dtype", "int8"], "--dtype: 'int8' is not a type; the types are bf16, fp16 and fp32"),
            ([self.llama(), "--layers", "3", *STEP[4:]], "--layers: is given by MODEL"),
        ]:
            with self.subTest(arguments=arguments):
                self.refuse(USAGE, "plan", "--training", *arguments, says=[says])
        for option in (["--peak", "1GB"], ["--seq-len", "5"], ["--gated-mlp"]):
            self.refuse(USAGE, "plan", "x", "--budget", "1GB", *option, says=[f"{option[0]}: needs --training"])

    def test_hostile_sizes(self):
        big = ["--layers", "10000000", "--hidden-size", "10000000", "--seq-len", "10000000", "--batch-size", "10000000"]
        result = self.run_command("plan", "--training", *big, "--flops", "1TFLOPS", *LINK)
        self.assertEqual(result.code, USAGE)
        self.assert_one_error(result, ["--layers"])
        self.plan("--layers", "1", "--hidden-size", "1", "--seq-len", "1", "--flops", "1GFLOPS", *LINK)


if __name__ == "__main__":
    harness.main()
