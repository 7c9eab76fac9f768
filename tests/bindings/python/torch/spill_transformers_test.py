"""Training steps of models of the package transformers whose activations leave. No line of the models is changed."""

import pytest
import torch
from models import equal
from spilling import nothing_is_left, spilling

transformers = pytest.importorskip("transformers")


def llama():
    config = transformers.LlamaConfig(
        vocab_size=96,
        hidden_size=64,
        intermediate_size=160,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        bos_token_id=0,
        eos_token_id=1,
    )
    return transformers.LlamaForCausalLM(config).train()


def gpt2():
    """A model with dropout."""
    config = transformers.GPT2Config(
        vocab_size=96, n_positions=64, n_embd=64, n_layer=3, n_head=4, bos_token_id=0, eos_token_id=1
    )
    return transformers.GPT2LMHeadModel(config).train()


MODELS = {"llama": llama, "gpt2": gpt2}


@pytest.fixture
def ids():
    return torch.randint(0, 96, (2, 32))


def step(model, ids, seed):
    """Returns the loss and the gradients."""
    torch.manual_seed(seed)
    model.zero_grad(set_to_none=True)
    loss = model(input_ids=ids, labels=ids).loss
    loss.backward()
    return [loss.detach(), *(one.grad.clone() for one in model.parameters())]


def bytes_saved(model, ids):
    total = 0

    def pack(tensor):
        nonlocal total
        total += tensor.nbytes
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        model(input_ids=ids, labels=ids)
    return total


@pytest.mark.parametrize("recompute", [None, False])
@pytest.mark.parametrize("peak", ["150KiB", "400KiB"])
@pytest.mark.parametrize("name", MODELS)
def test_a_planned_peak(device, ids, name, peak, recompute):
    model = MODELS[name]()
    want = [step(model, ids, seed) for seed in range(5)]
    with spilling(model, device, peak=peak, recompute=recompute) as spilled:
        for seed in range(5):
            assert equal(step(model, ids, seed), want[seed])
            assert nothing_is_left(spilled)
        plan = spilled.plan
    assert plan.meets_target and 0 < plan.peak_bytes <= int(peak[:3]) << 10
    assert plan.spilled_bytes + plan.recomputed_bytes > plan.plain_peak_bytes - plan.peak_bytes
    assert spilled.stats().spilled > 0


@pytest.mark.parametrize("options", [{"keep": 0}, {"keep": "100KiB"}, {"keep": 0, "recompute": True}])
@pytest.mark.parametrize("name", MODELS)
def test_saved_tensors_leave(device, ids, name, options):
    model = MODELS[name]()
    want = [step(model, ids, seed) for seed in range(3)]
    with spilling(model, device, **options) as spilled:
        for seed in range(3):
            assert equal(step(model, ids, seed), want[seed])
    computed = spilled.recompute_stats()
    left = spilled.stats().spill_bytes + (0 if computed is None else computed.bytes)
    assert left > 3 * bytes_saved(model, ids) // 4 - 3 * (100 << 10) and nothing_is_left(spilled)


@pytest.mark.parametrize("name", MODELS)
def test_its_own_checkpoints(device, ids, name):
    model = MODELS[name]()
    model.gradient_checkpointing_enable({"use_reentrant": False})
    want = step(model, ids, 0)
    with spilling(model, device, peak="100KiB") as spilled:
        for _ in range(4):
            assert equal(step(model, ids, 0), want)
    assert spilled.plan.meets_target and nothing_is_left(spilled)
