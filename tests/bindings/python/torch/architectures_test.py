"""Architectures whose modules read, or change, the weights of other modules, or convert their own: bit-equal in a
quarter, without further arguments, in forward, generate() and adapters' gradients.
"""

import copy

import pytest
import torch
from architectures import check, same
from models import PAGE, size_of

import libstagehand as sh
import libstagehand.torch as st

transformers = pytest.importorskip("transformers")

BASE = {"vocab_size": 99, "hidden_size": 64, "num_hidden_layers": 4}
ATTENTION = BASE | {"intermediate_size": 128, "num_attention_heads": 4, "max_position_embeddings": 64}
GROUPED = ATTENTION | {"num_key_value_heads": 2}
SSM = {"state_size": 8, "num_heads": 8, "head_dim": 16, "n_groups": 1, "chunk_size": 8}
TOKENS = {"input_ids": torch.arange(24).reshape(2, 12) + 5}
PIXELS = {"pixel_values": torch.linspace(-1, 1, 3 * 64 * 64).reshape(1, 3, 64, 64)}
SWITCH = {"d_model": 64, "d_ff": 128, "d_kv": 16, "num_heads": 4, "num_layers": 2, "num_decoder_layers": 2} | {
    "vocab_size": 99,
    "num_sparse_encoder_layers": 1,
    "num_sparse_decoder_layers": 1,
    "num_experts": 4,
}


def of(name, config, settings, inputs=TOKENS, dtype=torch.float32):
    def make():
        torch.manual_seed(0)
        made = getattr(transformers, name)(getattr(transformers, config)(**settings)).to(dtype)
        return made.eval().requires_grad_(False), inputs

    return pytest.param(make, id=name)


MODELS = [
    of("MambaForCausalLM", "MambaConfig", BASE | {"state_size": 8}),
    of("FalconMambaForCausalLM", "FalconMambaConfig", BASE | {"state_size": 8}),
    of("Mamba2ForCausalLM", "Mamba2Config", BASE | SSM),
    of(
        "Zamba2ForCausalLM",
        "Zamba2Config",
        ATTENTION
        | {"layers_block_type": ["mamba", "hybrid"] * 2, "num_key_value_heads": 4, "mamba_d_state": 8, "chunk_size": 8}
        | {"mamba_ngroups": 1, "n_mamba_heads": 8, "num_mem_blocks": 1, "adapter_rank": 4},
    ),
    of(
        "JambaForCausalLM",
        "JambaConfig",
        GROUPED
        | {"attn_layer_period": 2, "attn_layer_offset": 1, "expert_layer_period": 2, "expert_layer_offset": 1}
        | {"num_experts": 2, "mamba_d_state": 8, "mamba_dt_rank": 4, "use_mamba_kernels": False},
    ),
    of(
        "Qwen3NextForCausalLM",
        "Qwen3NextConfig",
        GROUPED
        | {"head_dim": 16, "linear_num_value_heads": 4, "linear_num_key_heads": 2, "linear_key_head_dim": 16}
        | {"linear_value_head_dim": 16, "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
        | {"shared_expert_intermediate_size": 32, "layer_types": ["linear_attention", "full_attention"] * 2},
    ),
    of(
        "Gemma3nForCausalLM",
        "Gemma3nTextConfig",
        GROUPED
        | {"intermediate_size": [128] * 4, "head_dim": 16, "vocab_size_per_layer_input": 99, "laurel_rank": 8}
        | {"hidden_size_per_layer_input": 8, "layer_types": ["sliding_attention", "full_attention"] * 2}
        | {"num_kv_shared_layers": 0, "activation_sparsity_pattern": [0.0] * 4, "altup_num_inputs": 2},
    ),
    of("RecurrentGemmaForCausalLM", "RecurrentGemmaConfig", GROUPED | {"lru_width": 64, "attention_window_size": 16}),
    of("RwkvForCausalLM", "RwkvConfig", BASE | {"context_length": 32, "rescale_every": 2}),
    of(
        "DebertaV2ForMaskedLM",
        "DebertaV2Config",
        ATTENTION | {"relative_attention": True, "position_buckets": 8, "pos_att_type": ["p2c", "c2p"]},
    ),
    of(
        "SwitchTransformersForConditionalGeneration",
        "SwitchTransformersConfig",
        SWITCH,
        TOKENS | {"decoder_input_ids": TOKENS["input_ids"]},
        torch.bfloat16,
    ),
]


@pytest.mark.parametrize("make", MODELS)
def test_bit_equal_without_arguments(device, make):
    model, inputs = make()
    want = copy.deepcopy(model)
    check(model, inputs, device)
    with torch.no_grad():
        assert same(model(**inputs), want(**inputs))


def test_the_table_of_a_detector(device):
    """DETR reads the weight of its query embedding."""
    backbone = transformers.ResNetConfig(
        embedding_size=8, hidden_sizes=[8, 16, 16, 32], depths=[1, 1, 1, 1], out_features=["stage4"]
    )
    halves = {"encoder_ffn_dim": 64, "decoder_ffn_dim": 64, "encoder_layers": 2, "decoder_layers": 2}
    config = transformers.DetrConfig(
        use_timm_backbone=False,
        use_pretrained_backbone=False,
        backbone=None,
        backbone_config=backbone,
        d_model=32,
        encoder_attention_heads=4,
        decoder_attention_heads=4,
        num_queries=5,
        **halves,
    )
    model = transformers.DetrForObjectDetection(config).eval().requires_grad_(False)
    with torch.no_grad():
        want = model(**PIXELS)
        with st.stream(model, device, budget="25%"):
            for _ in range(3):
                assert same(model(**PIXELS), want)


@pytest.mark.parametrize(
    "model_number, adapted", [(0, ["in_proj", "x_proj"]), (2, ["in_proj"]), (9, "all-linear")], ids=str
)
def test_gradients_of_adapters(model_number, adapted):
    """The weights that other modules read are frozen, and adapters on linear layers are trained."""
    peft = pytest.importorskip("peft")
    model, inputs = MODELS[model_number].values[0]()
    model = peft.get_peft_model(model, peft.LoraConfig(r=4, target_modules=adapted, init_lora_weights=False))
    trained = [one for one in model.parameters() if one.requires_grad]

    def gradients():
        model.zero_grad(set_to_none=True)
        model(**inputs).logits.square().mean().backward()
        return [one.grad.clone() for one in trained]

    want = gradients()
    model.zero_grad(set_to_none=True)
    with sh.Device("host", page_bytes=PAGE, backend_options="poison=1") as device:
        with st.stream(model, device, budget=size_of(model) // 3):
            for _ in range(3):
                assert all(torch.equal(one, other) for one, other in zip(gradients(), want))
            model.zero_grad(set_to_none=True)
