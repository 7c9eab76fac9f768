"""Architectures of transformers without a line changed and without further arguments: bit-equal in a part of their
bytes, in forward and generate(), with adapters, from files, and with activations that leave.

STAGEHAND_TEST_DEVICE names a device other than the host (cuda:0). STAGEHAND_TEST_ALL tries 25 %, 50 % and the smallest
budget that the library tells, in place of 30 %.
"""

import copy
import os

import pytest
import torch
from models import host, size_of, smallest
from spilling import check
from zoo import ARCHITECTURES, PIXELS, made, same, tokens_of, transformers

import libstagehand.torch as st

NAME = os.environ.get("STAGEHAND_TEST_DEVICE", "")


def budgets(model, inputs, device):
    if not os.environ.get("STAGEHAND_TEST_ALL"):
        return ["30%"]
    least = smallest(model, lambda: model(**inputs), device, size_of(model) // 50)
    return [max(size_of(model) // 4, least), max(size_of(model) // 2, least), least]


@pytest.mark.parametrize("name", ARCHITECTURES)
@torch.no_grad()
def test_bit_equal_without_arguments(device, name):
    model, inputs = made(name)
    place = torch.device(NAME or "cpu")
    inputs = {name: one.to(place) for name, one in inputs.items()}
    resident = copy.deepcopy(model).to(place)
    generates = list(inputs) == ["input_ids"] and model.can_generate()
    want = resident(**inputs)
    assert all(torch.isfinite(one).all() for one in want.values() if isinstance(one, torch.Tensor))
    tokens = tokens_of(resident, inputs["input_ids"]) if generates else None
    for budget in budgets(model, inputs, NAME or device):
        with st.stream(model, NAME or device, budget=budget) as streamed:
            for _ in range(3):
                assert same(model(**inputs), want), budget
            for _ in range(2 if generates else 0):
                assert torch.equal(tokens_of(model, inputs["input_ids"]), tokens), budget
            assert same(model(**inputs), want), budget
            assert budget != "30%" or streamed.stats().bytes_to_device > size_of(model)
        del streamed
    assert NAME or same(model(**inputs), resident(**inputs))


def test_the_table_of_a_detector(device):
    """DETR reads the weight of its query embedding."""
    backbone = transformers.ResNetConfig(
        embedding_size=8, hidden_sizes=[8, 16, 16, 32], depths=[1, 1, 1, 1], out_features=["stage4"]
    )
    half = {"ffn_dim": 64, "layers": 2, "attention_heads": 4}
    config = transformers.DetrConfig(
        **{f"{which}_{key}": value for which in ("encoder", "decoder") for key, value in half.items()},
        **{"use_timm_backbone": False, "use_pretrained_backbone": False, "backbone": None, "num_queries": 5},
        backbone_config=backbone,
        d_model=32,
    )
    model = transformers.DetrForObjectDetection(config).eval().requires_grad_(False)
    with torch.no_grad():
        want = model(**PIXELS)
        with st.stream(model, device, budget="25%"):
            for _ in range(3):
                assert same(model(**PIXELS), want)


def gradients(model, **inputs):
    model.zero_grad(set_to_none=True)
    loss = model(**inputs).logits.square().mean()
    loss.backward()
    return [loss.detach(), *(one.grad for one in model.parameters() if one.requires_grad)]


@pytest.mark.parametrize(
    "name, adapted, checkpointing",
    [
        ("MambaForCausalLM", ["in_proj", "x_proj"], None),
        ("Mamba2ForCausalLM", ["in_proj"], None),
        ("DebertaV2ForMaskedLM", "all-linear", None),
        *(("LlamaForCausalLM", ["q_proj", "down_proj"], reentrant) for reentrant in (None, False, True)),
    ],
    ids=str,
)
def test_gradients_of_adapters(device, name, adapted, checkpointing):
    """Weights that other modules read are frozen, and adapters on linear layers are trained."""
    peft = pytest.importorskip("peft")
    model, inputs = made(name)
    model = peft.get_peft_model(model, peft.LoraConfig(r=4, target_modules=adapted, init_lora_weights=False)).train()
    model.eval() if checkpointing is None else model.enable_input_require_grads()
    if checkpointing is not None:
        model.gradient_checkpointing_enable({"use_reentrant": checkpointing})
    want = gradients(model, **inputs)
    model.zero_grad(set_to_none=True)
    with st.stream(model, device, budget=size_of(model) // 3) as streamed:
        for _ in range(3):
            assert all(torch.equal(one, other) for one, other in zip(gradients(model, **inputs), want, strict=True))
        model.zero_grad(set_to_none=True)
        assert streamed.stats().steps == 3 and len(want) > 8


def test_saved_while_streamed_and_streamed_from_its_files(device, tmp_path):
    model, inputs = made("LlamaForCausalLM", 12)
    with torch.no_grad():
        want = model(**inputs).logits
        with st.stream(model, device, budget=size_of(model) // 4):
            model(**inputs)
            model.save_pretrained(tmp_path)
        with torch.device("meta"):
            meta = transformers.LlamaForCausalLM(model.config).eval()
        # What is computed, not stored.
        meta.model.rotary_emb = type(meta.model.rotary_emb)(model.config)
        with st.stream(meta, device, budget=size_of(model) // 4, files=tmp_path):
            for _ in range(3):
                assert torch.equal(meta(**inputs).logits, want)


@pytest.mark.parametrize("name", ["LlamaForCausalLM", "GPT2LMHeadModel", "Gemma3ForCausalLM"])
def test_generation_with_a_static_cache(name):
    model, inputs = made(name, 8)
    ids, static = inputs["input_ids"], {"count": 12, "cache_implementation": "static"}
    want = tokens_of(model, ids, **static)
    for budget in (size_of(model) // 2, size_of(model) // 4, smallest(model, lambda: model(ids))):
        with host(budget) as device, st.stream(model, device):
            for _ in range(2):  # the second call has the cache of the first one
                assert torch.equal(tokens_of(model, ids, **static), want)


# Activations.


def bytes_saved(model, ids):
    sizes = []
    with torch.autograd.graph.saved_tensors_hooks(lambda one: sizes.append(one.nbytes) or one, lambda one: one):
        model(input_ids=ids, labels=ids)
    return sum(sizes)


WAYS = [{"keep": 0}, {"keep": "100KiB"}, {"keep": 0, "recompute": True}]
WAYS += [{"peak": peak, "recompute": recompute} for peak in ("150KiB", "400KiB") for recompute in (None, False)]


@pytest.mark.parametrize("options", [*WAYS, {"peak": "100KiB", "checkpointed": True}], ids=str)
@pytest.mark.parametrize("name", ["LlamaForCausalLM", "GPT2LMHeadModel"])
def test_activations_that_leave(device, name, options):
    options, ids = dict(options), torch.randint(0, 96, (2, 32))
    model = made(name, 3)[0].requires_grad_(True).train()
    if options.pop("checkpointed", False):
        model.gradient_checkpointing_enable({"use_reentrant": False})

    def program(between):
        model.zero_grad(set_to_none=True)
        loss = model(input_ids=ids, labels=ids).loss
        if "peak" not in options:
            between()
        loss.backward()
        return [loss.detach(), *(one.grad.clone() for one in model.parameters())]

    spilled = check(device, program, model, steps=5, **options)
    stats, computed, plan = spilled.stats(), spilled.recompute_stats(), spilled.plan
    if plan is None:
        left = stats.spill_bytes + (0 if computed is None else computed.bytes)
        assert left > 5 * (bytes_saved(model, ids) // 4 - (100 << 10)) and stats.prefetched
    else:
        assert plan.meets_target and 0 < plan.peak_bytes <= int(options["peak"][:3]) << 10
        assert plan.spilled_bytes + plan.recomputed_bytes >= plan.plain_peak_bytes - plan.peak_bytes
    assert stats.spilled > 0 or options.get("peak") == "100KiB"
