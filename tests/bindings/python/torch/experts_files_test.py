"""Experts whose weights are in files: mapped ones, and those of `stagehand pack`."""

import json
import pathlib

import pytest
import torch
from experts_list_test import bytes_of, mixtures, outputs, tokens
from experts_test import LAYERS, USED, expert_bytes, mixture, tokens_of
from model_files import write_safetensors
from safetensors.torch import load_file, save_file
from torch import nn

import libstagehand.torch as st

DATA = pathlib.Path(__file__).resolve().parents[3] / "data/packed"
COUNT, SIZE = 10, 30


def from_file(model, path):
    save_file(model.state_dict(), path)
    model.load_state_dict(load_file(path), assign=True)
    return model


def test_only_experts_that_are_used_are_read_of_a_mapped_file(tmp_path):
    model = from_file(mixture(), tmp_path / "file")
    plain, _ = tokens_of(model, 30)
    with st.stream(model, "host", budget="60%", mapped=True) as streamed:
        first, cache = tokens_of(model, 10)
        before = streamed.stats().bytes_to_device
        rest, _ = tokens_of(model, 20, 10, cache)
        loaded = streamed.stats().bytes_to_device - before
    # Tensors in a file are not aligned, and slots are. Sums on processors have another order then.
    torch.testing.assert_close(torch.cat([first, rest]), plain)
    assert loaded <= 20 * LAYERS * USED * expert_bytes(model)


def test_a_list_in_a_mapped_file(tmp_path):
    model, inputs = from_file(mixtures(), tmp_path / "file"), tokens(10)
    plain = outputs(model, inputs)
    with st.stream(model, "host", budget="60%", mapped=True) as streamed:
        torch.testing.assert_close(outputs(model, inputs), plain)
        loaded = streamed.stats().bytes_to_device
    assert loaded < bytes_of(model)


class Stack(nn.Module):
    def __init__(self):
        super().__init__()
        self.num_experts = COUNT
        self.weight = nn.Parameter(torch.zeros(COUNT, SIZE, SIZE, dtype=torch.bfloat16), requires_grad=False)

    def forward(self, x, top_k_index):
        return torch.stack([self.weight[number] for number in top_k_index.tolist()]).view(torch.int16) + x


class Stacks(nn.Module):
    """Each of its layers gives the bytes of two experts."""

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(Stack() for _ in range(6))

    def forward(self, chosen):
        return torch.stack([layer(0, chosen) for layer in self.layers])


@pytest.mark.parametrize("options", [{}, {"pin": False}])
def test_experts_that_a_file_has_packed_are_unpacked_one_by_one(tmp_path, options):
    frame = (DATA / "weights.packed").read_bytes()
    about = {f"layers.{i}.weight": {"dtype": "BF16", "shape": [COUNT, SIZE, SIZE]} for i in range(6)}
    stored = {name: ("U8", [len(frame)], frame) for name in about}
    note = {"stagehand.packed": json.dumps({"version": 1, "tensors": about})}
    write_safetensors(tmp_path / "packed.safetensors", stored, note)
    contents = torch.frombuffer(bytearray((DATA / "weights.bf16").read_bytes()), dtype=torch.int16)
    experts = contents[: COUNT * SIZE * SIZE].view(COUNT, SIZE, SIZE)
    with torch.device("meta"):
        model = Stacks()
    with st.stream(model, "host", budget="70%", files=tmp_path, **options) as streamed, torch.no_grad():
        for chosen in (torch.tensor([i, (3 * i + 1) % COUNT]) for i in (0, 1, 0, 2, 9, 7)):
            assert torch.equal(model(chosen), experts[chosen].expand(6, 2, SIZE, SIZE))
        assert not any(one._read for one in streamed._files._packed)
        used = 6 * len(model.layers) * 2 * (2 * SIZE * SIZE)
        assert streamed.stats().bytes_to_device <= used
