"""Experts, one by one: only those that tokens use are loaded, and the results are those of the plain model."""

from types import SimpleNamespace

import pytest
import torch
import transformers
import zoo
from models import host
from transformers.models.muse_spark.modeling_muse_spark import MuseSparkExperts

import libstagehand as sh
import libstagehand.torch as st

COUNT, USED, LAYERS = 16, 2, 3
SHAPE = zoo.GROUPED | {"num_hidden_layers": LAYERS, "num_experts_per_tok": USED, "head_dim": 16}
MANY = {"moe_intermediate_size": 64, "num_experts": COUNT}
SOME = {"moe_intermediate_size": 64, "first_k_dense_replace": 0}
GROUPS = {"n_group": 1, "topk_group": 1, "n_shared_experts": 1}
LATENT = SOME | {"q_lora_rank": 32, "kv_lora_rank": 32, "qk_rope_head_dim": 16, "qk_nope_head_dim": 16}
LATENT |= {"v_head_dim": 16, "num_key_value_heads": 4}
ERNIE = SOME | {"moe_num_experts": COUNT, "moe_k": USED, "moe_num_shared_experts": 1, "moe_layer_start_index": 0}
JAMBA = {"num_experts": COUNT, "expert_layer_period": 1, "expert_layer_offset": 0}
LIQUID = {"layer_types": ["conv", "full_attention", "conv"]}
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
    "DeepseekV2ForCausalLM": ("DeepseekV2Config", SHAPE | LATENT | {"n_routed_experts": COUNT}),
    "DeepseekV3ForCausalLM": ("DeepseekV3Config", SHAPE | LATENT | GROUPS | {"n_routed_experts": COUNT}),
    "Glm4MoeForCausalLM": ("Glm4MoeConfig", SHAPE | GROUPS | SOME | {"n_routed_experts": COUNT}),
    "JambaForCausalLM": ("JambaConfig", SHAPE | zoo.JAMBA | JAMBA),
    "Ernie4_5_MoeForCausalLM": ("Ernie4_5_MoeConfig", SHAPE | ERNIE),
    "MiniMaxForCausalLM": ("MiniMaxConfig", SHAPE | {"num_local_experts": COUNT, "block_size": 16}),
    "HunYuanMoEV1ForCausalLM": ("HunYuanMoEV1Config", SHAPE | {"num_experts": COUNT, "moe_topk": USED}),
    "Lfm2MoeForCausalLM": ("Lfm2MoeConfig", SHAPE | SOME | LIQUID | {"num_experts": COUNT, "num_dense_layers": 0}),
    "FlexOlmoForCausalLM": ("FlexOlmoConfig", SHAPE | {"num_experts": COUNT, "pad_token_id": 0}),
    "Dots1ForCausalLM": ("Dots1Config", SHAPE | GROUPS | SOME | {"n_routed_experts": COUNT}),
}  # fmt: skip
KINDS = ["eager", "grouped_mm", "batched_mm"]
# These are compared with all kinds: they differ in biases, in transposed tensors, and in a shared expert.
ALL_KINDS = ["Qwen3MoeForCausalLM", "Qwen2MoeForCausalLM", "GptOssForCausalLM", "JambaForCausalLM"]
CASES = [(name, kind) for name in MIXTURES for kind in (KINDS if name in ALL_KINDS else ["grouped_mm"])]


def mixture(name="Qwen3MoeForCausalLM", kind="grouped_mm", **options):
    config, settings = MIXTURES[name]
    torch.manual_seed(0)
    model = getattr(transformers, name)(getattr(transformers, config)(**settings | options))
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


@pytest.mark.parametrize("name, kind", CASES)
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


def test_an_interrupted_call_leaves_the_tensors_of_the_model():
    """Python calls no hook of modules then."""
    model = mixture().requires_grad_(False)
    inputs = torch.randn(1, 6, 64, requires_grad=True)
    model(inputs_embeds=inputs).logits.sum().backward()
    want, inputs.grad = inputs.grad, None

    def interrupt(module, args):
        raise KeyboardInterrupt

    with st.stream(model, "host", budget="60%"):
        layer = layers_of(model)[1]
        hook = layer.act_fn.register_forward_pre_hook(interrupt)
        with pytest.raises(KeyboardInterrupt):
            tokens_of(model, 1)
        hook.remove()
        model(inputs_embeds=inputs).logits.sum().backward()
        assert layer.num_experts == COUNT
    assert torch.equal(inputs.grad, want)


@pytest.mark.parametrize("budget", ["31%", "60%"])
def test_a_call_that_uses_all_experts_of_its_layer(budget):
    """In layers that are blocks, as their budget has no room for slots beside them, and in a pool that has to grow."""
    model, prompt = mixture(), torch.arange(5, 95).view(1, 90)
    plain, _ = tokens_of(model, 4)
    with torch.no_grad():
        whole = model(prompt).logits
    with st.stream(model, "host", budget=budget), torch.no_grad():
        for _ in range(2):
            torch.testing.assert_close(tokens_of(model, 4)[0], plain, rtol=0, atol=0)
            # transformers sorts the tokens of an expert in no fixed order, so products may round otherwise.
            torch.testing.assert_close(model(prompt).logits, whole, rtol=1e-5, atol=1e-6)


def test_a_budget_below_the_experts_of_one_layer_is_refused_with_the_least():
    model = mixture()
    least = COUNT * expert_bytes(model)
    with host(least // 2) as device, st.stream(model, device), pytest.raises(sh.BudgetError) as error:
        tokens_of(model, 1)
    assert f"({least} bytes)" in str(error.value)
    assert "model.layers.0.mlp.experts" in str(error.value)


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


@pytest.mark.parametrize("kind", KINDS)
def test_a_router_that_gives_nan_gives_what_it_gives_the_plain_model(kind):
    model = mixture(kind=kind)
    with torch.no_grad():
        model.model.layers[1].mlp.gate.weight.fill_(torch.nan)
    plain, _ = tokens_of(model, 3)
    assert plain.isnan().all()
    with st.stream(model, "host", budget="60%"):
        torch.testing.assert_close(tokens_of(model, 3)[0], plain, equal_nan=True)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", [torch.int32, torch.int16, torch.uint8, torch.float32, torch.bool])
def test_numbers_of_another_type_do_what_they_do_in_the_plain_model(dtype, kind):
    model = mixture(kind=kind)
    inputs = torch.randn(3, 64), torch.tensor([[0, 1], [1, 0], [1, 1]]).to(dtype), torch.ones(3, USED)

    def found():
        try:
            with torch.no_grad():
                return layers_of(model)[1](*inputs)
        except (RuntimeError, IndexError) as error:
            return type(error)

    plain = found()
    with st.stream(model, "host", budget="60%"):
        tokens_of(model, 2)
        again = found()
        assert again is plain if isinstance(plain, type) else torch.equal(again, plain)
        tokens_of(model, 2)


def test_no_tokens():
    model = mixture()
    with st.stream(model, "host", budget="60%"), torch.no_grad():
        out = layers_of(model)[1](torch.zeros(0, 64), torch.zeros(0, USED, dtype=torch.int64), torch.zeros(0, USED))
    assert out.shape == (0, 64)


def test_a_pool_has_no_more_slots_than_a_grouped_product_has_groups():
    """On CUDA it takes at most 1023."""
    model = mixture(num_experts=400, moe_intermediate_size=8)
    plain, _ = tokens_of(model, 5)
    sizes = set()
    with st.stream(model, "host", budget="90%"):
        for layer in layers_of(model):
            layer.register_forward_pre_hook(lambda module, args: sizes.add(len(module.down_proj)))
        assert torch.equal(tokens_of(model, 5)[0], plain)
    assert 400 < max(sizes) < 1024


def test_adapters_of_stacked_experts():
    """The module computes with what they make of all experts."""
    peft = pytest.importorskip("peft")
    names = ["mlp.experts.gate_up_proj", "mlp.experts.down_proj"]

    def adapted():
        config = peft.LoraConfig(r=2, target_modules=["q_proj"], target_parameters=names, init_lora_weights=False)
        return peft.get_peft_model(mixture(), config).eval()

    def trained(model):
        adapters = [parameter for parameter in model.parameters() if parameter.requires_grad]
        optimizer = torch.optim.AdamW(adapters, 1e-2)
        losses = [tokens_of(model, 3)[0]]
        for _ in range(3):
            loss = model(input_ids=torch.arange(12).view(1, 12) + 5).logits.square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            losses += [loss.detach(), tokens_of(model, 3)[0]]
        with model.disable_adapter():
            return losses + [tokens_of(model, 3)[0]] + [parameter.detach().clone() for parameter in adapters]

    torch.manual_seed(2)
    plain = trained(adapted())
    torch.manual_seed(2)
    model = adapted()
    with st.stream(model, "host", budget="60%"):
        found = trained(model)
    assert all(map(torch.equal, found, plain))


@pytest.mark.parametrize("blocks", [None, "model.layers.*", "*.mlp.experts"])
@pytest.mark.parametrize("make", [lambda ps: torch.optim.SGD(ps, 0.05, 0.9, weight_decay=0.1), torch.optim.AdamW])
@pytest.mark.parametrize("kind", ["eager", "grouped_mm"])
def test_training_moves_all_experts_as_in_the_plain_model(kind, make, blocks):
    """Those without tokens too, by momentum and weight decay."""
    tokens = torch.randint(5, 99, (4, 1, 3), generator=torch.Generator().manual_seed(3))

    def steps(model, optimizer=None):
        for batch in tokens:
            model(input_ids=batch).logits.square().mean().backward()
            if optimizer is not None:
                optimizer.step()
                optimizer.zero_grad()
        return {name: tensor.clone() for name, tensor in model.state_dict().items()}

    plain, model = mixture(kind=kind), mixture(kind=kind)
    before = layers_of(plain)[0].down_proj.detach().clone()
    want = steps(plain, make(plain.parameters()))
    with st.stream(model, "host", budget="75%", blocks=blocks, optimizer=make):
        steps(model)
    assert all((tensor != other).any() for tensor, other in zip(before, layers_of(model)[0].down_proj))
    for name, tensor in model.state_dict().items():
        torch.testing.assert_close(tensor, want[name], rtol=0, atol=0, msg=name)


@pytest.mark.parametrize("kind", KINDS)
def test_a_norm_in_a_module_of_stacked_experts_is_a_block_of_its_own(kind):
    model = mixture(kind=kind)
    settings = {"num_local_experts": COUNT, "moe_hidden_size": 64, "moe_intermediate_size": 64, "hidden_act": "silu"}
    config = SimpleNamespace(**settings, post_norm_eps=1e-6, _experts_implementation=kind)
    with torch.no_grad():
        for layer in model.model.layers:
            layer.mlp.experts = MuseSparkExperts(config)
            for parameter in layer.mlp.experts.parameters():
                parameter.normal_(0, 0.1)
    plain, _ = tokens_of(model, 20)
    with st.stream(model, "host", budget="60%") as streamed:
        first, cache = tokens_of(model, 10)
        before = streamed.stats().bytes_to_device
        rest, _ = tokens_of(model, 10, 10, cache)
        loaded = streamed.stats().bytes_to_device - before
    torch.testing.assert_close(torch.cat([first, rest]), plain, rtol=1e-5, atol=1e-6)
    assert loaded <= 10 * LAYERS * USED * expert_bytes(model)
