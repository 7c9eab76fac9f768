"""Adapters of peft and diffusers over a streamed base: chosen, merged, unmerged, weighted, loaded and removed."""

import copy

import pytest
import torch
from models import size_of
from zoo import flux_transformer, llama

import libstagehand.torch as st

peft = pytest.importorskip("peft")


def adapter(rank):
    return peft.LoraConfig(r=rank, target_modules=["q_proj", "down_proj"], init_lora_weights=False)


@pytest.fixture
def model():
    made = peft.get_peft_model(llama().requires_grad_(True), adapter(4), "a")
    made.add_adapter("b", adapter(8))
    return made.eval()


def outputs(model, ids, folder):
    """Goes through the operations on adapters. Yields the logits after each."""

    def logits():
        with torch.no_grad():
            return model(input_ids=ids).logits

    yield logits()
    model.set_adapter("b")
    yield logits()
    for safe in (False, True):
        model.merge_adapter(safe_merge=safe)
        yield logits()
        model.unmerge_adapter()
        yield logits()
    model.base_model.set_adapter(["a", "b"])
    yield logits()
    model.merge_adapter(["a", "b"])
    yield logits()
    model.unmerge_adapter()
    yield logits()
    model.add_weighted_adapter(["a", "a"], [0.5, 0.25], "mixed", combination_type="linear")
    model.set_adapter("mixed")
    yield logits()
    with model.disable_adapter():
        yield logits()
    model.load_adapter(folder, "loaded")
    model.set_adapter("loaded")
    yield logits()
    model.delete_adapter("mixed")
    yield logits()


@pytest.mark.parametrize("is_frozen", [False, True])  # frozen adapters are streamed too
def test_adapters_of_peft(device, model, tmp_path, is_frozen):
    if is_frozen:
        model.requires_grad_(False)
    ids = torch.randint(5, 90, (2, 9))
    model.save_pretrained(tmp_path)
    resident = copy.deepcopy(model)
    want = list(outputs(resident, ids, tmp_path / "b"))
    assert not any(torch.equal(one, want[0]) for one in want[1:4])
    with st.stream(model, device, budget=size_of(model) // 3):
        for got, one in zip(outputs(model, ids, tmp_path / "b"), want, strict=True):
            assert torch.equal(got, one)


def test_merged_weights_are_in_the_model_at_the_end(device, model):
    ids = torch.randint(5, 90, (2, 9))
    resident = copy.deepcopy(model)
    resident.merge_adapter()
    with torch.no_grad(), st.stream(model, device, budget=size_of(model) // 3):
        model(input_ids=ids)
        model.merge_adapter()
    weight = "base_model.model.model.layers.2.mlp.down_proj.base_layer.weight"
    assert torch.equal(model.state_dict()[weight], resident.state_dict()[weight])
    with torch.no_grad():
        assert torch.equal(model(input_ids=ids).logits, resident(input_ids=ids).logits)


@pytest.mark.parametrize("init", [False, "olora", "pissa"])
def test_adapters_that_come_while_streaming_are_trained(device, init):
    """A model without adapters is streamed, then peft adds some, which may take their part from the weights."""
    ids = torch.randint(5, 90, (2, 9))
    base = llama().requires_grad_(False)

    def gradients(base):
        torch.manual_seed(5)
        config = peft.LoraConfig(r=4, target_modules=["q_proj", "down_proj"], init_lora_weights=init)
        model = peft.get_peft_model(base, config).eval()
        model(input_ids=ids).logits.square().mean().backward()
        return [one.grad for one in model.parameters() if one.requires_grad]

    want = gradients(copy.deepcopy(base))
    with st.stream(base, device, budget=size_of(base) // 3):
        base(input_ids=ids)
        got = gradients(base)
    assert want and all(torch.equal(one, other) for one, other in zip(got, want, strict=True))


def test_adapters_of_diffusers(device):
    """fuse_lora() writes the sources, and unfuse_lora() writes them back."""
    model, inputs = flux_transformer(num_single_layers=2)
    targets = ["to_q", "to_k", "proj_mlp"]
    model.add_adapter(peft.LoraConfig(r=4, target_modules=targets, init_lora_weights=False), "one")
    model.add_adapter(peft.LoraConfig(r=2, target_modules=targets, init_lora_weights=False), "two")
    model.requires_grad_(False)

    def run(model):
        def out():
            with torch.no_grad():
                return model(**inputs).sample

        for names, weights in (("one", 1.0), (["one", "two"], [0.5, 0.25])):
            model.set_adapters(names, weights)
            yield out()
        model.fuse_lora(adapter_names=["one", "two"])
        yield out()
        model.unfuse_lora()
        yield out()
        model.disable_adapters()
        yield out()
        model.enable_adapters()
        model.delete_adapters("one")
        model.set_adapters("two")
        yield out()

    want = list(run(copy.deepcopy(model)))
    with st.stream(model, device, budget=size_of(model) // 3):
        for got, one in zip(run(model), want, strict=True):
            assert torch.equal(got, one)
