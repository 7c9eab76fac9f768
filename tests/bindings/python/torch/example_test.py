"""The example, and the benchmark for GPUs on the CPU, as programs."""

import json
import pathlib
import re
import subprocess
import sys
import types

import pytest
import torch
from models import Net, Pipeline

ROOT = pathlib.Path(__file__).parents[4]


def run(*words):
    done = subprocess.run([sys.executable, *map(str, words)], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_adapters_are_trained():
    out = run(ROOT / "examples/torch_lora/torch_lora.py")
    assert "the trained weights are equal, bit by bit" in out


def test_a_transformer_is_trained_with_spilled_activations(tmp_path):
    small = ["--layers", "4", "--width", "64", "--tokens", "64", "--batch", "2", "--steps", "4", "--copies", "2"]
    out = run(ROOT / "examples/train_spill/train_spill.py", *small)
    assert "the losses and the weights are equal, bit by bit" in out
    left, steps, copied = re.search(r"^(\d+) tensors left in (\d+) steps: ([\d.]+) MiB copied$", out, re.M).groups()
    assert int(steps) == 4 and int(left) >= 4 * 4 * 8 and float(copied) > 4
    rows = dict(re.findall(r"^(plain|checkpointed|spilled) .*?([\d.]+) MiB +[\d.]+$", out, re.M))
    peaks = {name: float(size) for name, size in rows.items()}
    assert peaks["checkpointed"] < peaks["plain"] and peaks["spilled"] < 0.9 * peaks["plain"], out
    for name, peak in rows.items():
        assert f"{name}: the memory over a step, {peak} MiB at most" in out


def test_a_server_and_a_trainer_take_turns():
    small = ["--layers", "2", "--width", "128", "--length", "32", "--turns", "2", "--steps", "3"]
    out = run(ROOT / "examples/colocate/colocate.py", *small)
    assert out.count("yes, bit by bit") == 3 and "NO" not in out
    rows = re.findall(
        r"^(server|trainer) +([\d.]+) MiB +([\d.]+) MiB +([\d.]+) MiB +([\d.]+) MiB +([\d.]+) MiB", out, re.M
    )
    assert [row[0] for row in rows] == ["server", "trainer"] * 2 + ["server"] * 2
    for who, *sizes in rows:
        memory, brought, released, copied, left = map(float, sizes)
        assert memory == brought == released > 0 and left == 0 and copied <= memory
        assert copied > 0 or who == "server"
    # The weights of the server change once, and its cache is not copied.
    assert [float(row[4]) > 0 for row in rows if row[0] == "server"] == [False, False, True, False]
    texts = dict(re.findall(r"^(text|then) +(.*)$", out, re.M))
    assert texts["text"] != texts["then"]


class Painter(Pipeline):
    def __call__(self, text):
        return types.SimpleNamespace(images=[self.components["net"](torch.tensor([len(text)]))["logits"]])


def test_the_example_of_the_readme(tokens):
    (example,) = re.findall(r"^```py\n(.*?)^```", (ROOT / "README.md").read_text(), flags=re.S | re.M)
    model = Net()
    names = {"model": model, "tokens": tokens, "pipe": Painter(net=Net().requires_grad_(False))}
    names |= {"batch": tokens, "loss": lambda out: out["logits"].square().mean()}
    exec(example.replace('"cuda:0"', '"host"'), names)
    assert names["logits"]["logits"].shape == (3, 7, 50) and names["image"].shape == (1, 50)
    got = [one.grad.clone() for one in model.parameters()]
    names["loss"](model(tokens)).backward()
    assert all(torch.equal(one.grad, 2 * before) for one, before in zip(model.parameters(), got))


def bench(name, folder, words):
    """Runs a benchmark for GPUs on the CPU. Returns its rows and its output."""
    pytest.importorskip("transformers")
    out = run(ROOT / f"bindings/python/bench/torch_{name}_bench.py", *words.split(), "--json", folder / "out")
    return json.loads((folder / "out").read_text()), out


def test_the_benchmark_of_offloading(tmp_path):
    rows, out = bench("offload", tmp_path, "--device cpu --gb 0.01 --steps 1 --tokens 8")
    assert [row["what"] for row in rows] == ["check", "machine", "bench", "bench"]
    assert all(row["equal"] for row in rows if "equal" in row) and "diffusers is skipped" in out


@pytest.mark.parametrize("model", ["gpt", "transformers"])
def test_the_benchmark_of_training(tmp_path, model):
    small = "--device cpu --width 64 --heads 4 --layers 2 --tokens 64 --vocabulary 96"
    few = f"--model {model} --warm 3 --steps 1 --peak 100KiB --low-peak 100KiB"
    rows, out = bench("train", tmp_path, f"{small} {few}")
    rows = {row["arm"]: row for row in rows}
    assert all(row["equal"] for row in rows.values()), out
    assert {"plain", "checkpoint", "save_on_cpu", "all", "recompute", "peak", "peak+gradients"} <= rows.keys()
    assert all(rows[arm]["spilled_gib"] > 0 for arm in ("all", "peak"))
    assert "peak: the plan: {'meets_target'" in out


def test_the_benchmark_of_decoding(tmp_path):
    small = "--device cpu --layers 6 --width 128 --vocabulary 512 --prompt 9"
    found, out = bench("decode", tmp_path, f"{small} --tokens 3 --rounds 1 --budgets 0.3,0.9")
    rows = found["rows"]
    streamed = [row for row in rows if row["package"] == "libstagehand"]
    assert rows[0]["package"] == "resident" and [row["budget"] for row in streamed] == pytest.approx([0.3, 0.9], 0.01)
    assert all(row["equal"] and row["prefill_by_bound"] > 0 and row["token_by_bound"] > 0 for row in streamed), out
    assert "÷ bound" in out and "link" in out


def test_the_benchmark_of_pipelines(tmp_path):
    pytest.importorskip("diffusers")
    small = "--device cpu --width 64 --blocks 1 --single 2 --encoder 2 --sizes 32"
    rows, out = bench("pipeline", tmp_path, f"{small} --steps 1 --rounds 1")
    assert [row["package"] for row in rows] == ["resident", "libstagehand"] and all(row["equal"] for row in rows), out
    skipped = ["enable_model_cpu_offload", "enable_sequential_cpu_offload", "group offload, leaves"]
    assert all(f"{name}: skipped, because it needs a GPU" in out for name in skipped)
