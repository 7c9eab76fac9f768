"""Experts, one by one: only those that tokens use are loaded, and the results are those of the plain model."""

import pytest
import torch
import transformers
import zoo
from models import host

import libstagehand.torch as st

COUNT, USED, LAYERS = 16, 2, 3
SHAPE = zoo.GROUPED | {"num_hidden_layers": LAYERS, "num_experts_per_tok": USED, "head_dim": 16}
MANY = {"moe_intermediate_size": 64, "num_experts": COUNT}
# By the name of the class: the configuration and its arguments.
MIXTURES = {
    "Qwen3MoeForCausalLM": ("Qwen3MoeConfig", SHAPE | MANY),
    "Qwen2MoeForCausalLM": ("Qwen2MoeConfig", SHAPE | MANY | {"shared_expert_intermediate_size": 64}),
    "Qwen3NextForCausalLM": (
        "Qwen3NextConfig",
        SHAPE | MANY | zoo.QWEN_NEXT | {"layer_types": ["linear_attention", "full_attention", "linear_attention"]},
    ),
    "MixtralForCausalLM": ("MixtralConfig", SHAPE | {"num_local_experts": COUNT}),
    "OlmoeForCausalLM": ("OlmoeConfig", SHAPE | {"num_experts": COUNT}),
    "GptOssForCausalLM": ("GptOssConfig", SHAPE | {"num_local_experts": COUNT, "sliding_window": 8}),
    "GraniteMoeForCausalLM": ("GraniteMoeConfig", SHAPE | {"num_local_experts": COUNT}),
    "PhimoeForCausalLM": ("PhimoeConfig", SHAPE | {"num_local_experts": COUNT, "pad_token_id": 0}),
}
KINDS = ["eager", "grouped_mm", "batched_mm"]


def mixture(name="Qwen3MoeForCausalLM", kind="grouped_mm"):
    config, settings = MIXTURES[name]
    torch.manual_seed(0)
    model = getattr(transformers, name)(getattr(transformers, config)(**settings))
    model.set_experts_implementation(kind)
    return model.eval()


def layers_of(model):
    return [module for module in model.modules() if hasattr(module, "num_experts") and hasattr(module, "down_proj")]


def expert_bytes(model):
    return sum(tensor.nbytes for tensor in layers_of(model)[0].parameters()) // COUNT


@torch.no_grad()
def tokens_of(model, count=40, first=0, cache=None):
    """The logits of so many tokens, one at a time."""
    found = []
    for token in torch.randint(5, 99, (200,), generator=torch.Generator().manual_seed(1))[first : first + count]:
        out = model(token.view(1, 1), past_key_values=cache, use_cache=True)
        cache = out.past_key_values
        found.append(out.logits)
    return torch.cat(found), cache


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", MIXTURES)
def test_only_experts_that_are_used_are_loaded(name, kind):
    model = mixture(name, kind)
    plain, _ = tokens_of(model)
    prompt = {"input_ids": torch.randint(5, 99, (2, 30))}
    with torch.no_grad():
        whole = model(**prompt).logits
    with st.stream(model, "host", budget="60%") as streamed:
        first, cache = tokens_of(model, 10)
        before = streamed.stats().bytes_to_device
        rest, _ = tokens_of(model, 30, 10, cache)
        loaded = streamed.stats().bytes_to_device - before
        with torch.no_grad():
            again = model(**prompt).logits
        assert all(layer.num_experts == COUNT and layer.down_proj.size(0) == COUNT for layer in layers_of(model))
    # A sum over experts has the order of their slots in the loop of eager.
    close = {"rtol": 1e-5, "atol": 1e-6} if kind == "eager" else {"rtol": 0, "atol": 0}
    torch.testing.assert_close(torch.cat([first, rest]), plain, **close)
    torch.testing.assert_close(again, whole, **close)
    assert loaded <= 30 * LAYERS * USED * expert_bytes(model)


def test_a_model_that_fits_loads_nothing_after_its_first_step():
    model = mixture()
    with st.stream(model, "host", budget="100%") as streamed:
        tokens_of(model, 3)
        before = streamed.stats().bytes_to_device
        tokens_of(model, 5)
        assert streamed.stats().bytes_to_device == before


@pytest.mark.parametrize("choice", [-1, COUNT])
def test_experts_that_do_not_exist_are_named(choice):
    model = mixture()
    with st.stream(model, "host", budget="60%"), torch.no_grad():
        tokens_of(model, 2)
        layer = layers_of(model)[1]
        hidden, weights = torch.randn(1, 64), torch.ones(1, USED)
        with pytest.raises(IndexError, match=rf"layers.1.mlp.experts has {COUNT} experts, .* \[{choice}\]"):
            layer(hidden, torch.tensor([[0, choice]]), weights)
        layer(hidden, torch.tensor([[0, 1]]), weights)
        tokens_of(model, 2)


def test_a_forward_that_fails_holds_nothing():
    model = mixture()
    plain, _ = tokens_of(model, 5)
    with st.stream(model, "host", budget="60%") as streamed:
        layer = layers_of(model)[1]
        act, layer.act_fn = layer.act_fn, None
        with pytest.raises(TypeError):
            tokens_of(model, 1)
        layer.act_fn = act
        assert layer.num_experts == COUNT
        assert torch.equal(tokens_of(model, 5)[0], plain)
    assert streamed.stats().failed_loads == 0


def test_weights_are_those_of_the_model_outside_a_call():
    model = mixture()
    want = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    with st.stream(model, "host", budget="60%"):
        tokens_of(model, 3)
        found = model.state_dict()
        assert all(torch.equal(found[name], tensor) for name, tensor in want.items())
        gate_up = layers_of(model)[0].gate_up_proj
        assert gate_up.shape[0] == COUNT
        assert torch.equal(gate_up[3].cpu(), want["model.layers.0.mlp.experts.gate_up_proj"][3])


def test_a_call_with_gradients_has_all_experts_of_its_layer():
    """Frozen experts, below embeddings that are trained."""
    model = mixture()
    model.requires_grad_(False)
    inputs = torch.randn(1, 6, 64, requires_grad=True)
    model(inputs_embeds=inputs).logits.sum().backward()
    want, inputs.grad = inputs.grad, None
    with st.stream(model, "host", budget="60%"):
        tokens_of(model, 3)
        model(inputs_embeds=inputs).logits.sum().backward()
        tokens_of(model, 3)
    assert torch.equal(inputs.grad, want)


def test_a_new_source_is_loaded():
    model, other = mixture(), mixture()
    with torch.no_grad():
        for layer in layers_of(other):
            layer.down_proj.mul_(2)
    plain, _ = tokens_of(other, 6)
    with st.stream(model, "host", budget="60%"):
        tokens_of(model, 6)
        model.load_state_dict(other.state_dict())
        assert torch.equal(tokens_of(model, 6)[0], plain)


def test_two_models_on_one_device():
    models = [mixture(), mixture("MixtralForCausalLM")]
    plain = [tokens_of(model, 8)[0] for model in models]
    size = sum(parameter.nbytes for model in models for parameter in model.parameters())
    with host(size * 2 // 3) as device, st.stream(models[0], device), st.stream(models[1], device):
        for _ in range(2):
            for model, want in zip(models, plain):
                assert torch.equal(tokens_of(model, 8)[0], want)
