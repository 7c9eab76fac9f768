"""Further architectures of transformers, without arguments (architectures.py)."""

import pytest
import torch
from architectures import check
from architectures_test import ATTENTION, GROUPED, PIXELS, TOKENS

transformers = pytest.importorskip("transformers")

EXPERTS = {"num_experts_per_tok": 2, "moe_intermediate_size": 32}
OPT = ATTENTION | {"ffn_dim": 128, "word_embed_proj_dim": 64}
OLD = {"vocab_size": 99, "n_embd": 64, "n_layer": 4, "n_head": 4, "n_positions": 64}
SEQUENCES = {"vocab_size": 99, "d_model": 64, "encoder_layers": 2, "decoder_layers": 2} | {
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 128,
    "decoder_ffn_dim": 128,
    "max_position_embeddings": 64,
}
BOTH = TOKENS | {"decoder_input_ids": TOKENS["input_ids"]}
PICTURES = {"hidden_size": 64, "num_hidden_layers": 4, "num_attention_heads": 4, "intermediate_size": 128} | {
    "image_size": 64,
    "patch_size": 16,
}

MODELS = {
    "MistralForCausalLM": ("MistralConfig", GROUPED),
    "MixtralForCausalLM": ("MixtralConfig", GROUPED | {"num_local_experts": 4, "num_experts_per_tok": 2}),
    "Qwen2ForCausalLM": ("Qwen2Config", GROUPED),
    "Qwen3ForCausalLM": ("Qwen3Config", GROUPED | {"head_dim": 16}),
    "Qwen3MoeForCausalLM": ("Qwen3MoeConfig", GROUPED | EXPERTS | {"num_experts": 4, "head_dim": 16}),
    "GemmaForCausalLM": ("GemmaConfig", GROUPED | {"head_dim": 16}),
    "Gemma2ForCausalLM": ("Gemma2Config", GROUPED | {"head_dim": 16}),
    "Phi3ForCausalLM": ("Phi3Config", GROUPED | {"pad_token_id": 0}),
    "PhiForCausalLM": ("PhiConfig", ATTENTION),
    "GPTNeoXForCausalLM": ("GPTNeoXConfig", ATTENTION),
    "GPTJForCausalLM": ("GPTJConfig", OLD | {"rotary_dim": 8}),
    "CodeGenForCausalLM": ("CodeGenConfig", OLD | {"rotary_dim": 8}),
    "GPTBigCodeForCausalLM": ("GPTBigCodeConfig", OLD),
    "BloomForCausalLM": ("BloomConfig", {"vocab_size": 99, "hidden_size": 64, "n_layer": 4, "n_head": 4}),
    "FalconForCausalLM": ("FalconConfig", ATTENTION),
    "OPTForCausalLM": ("OPTConfig", OPT),
    "StableLmForCausalLM": ("StableLmConfig", ATTENTION | {"num_key_value_heads": 4}),
    "Starcoder2ForCausalLM": ("Starcoder2Config", GROUPED),
    "Olmo2ForCausalLM": ("Olmo2Config", GROUPED),
    "CohereForCausalLM": ("CohereConfig", GROUPED),
    "GraniteForCausalLM": ("GraniteConfig", GROUPED),
    "NemotronForCausalLM": ("NemotronConfig", GROUPED),
    "GlmForCausalLM": ("GlmConfig", GROUPED | {"head_dim": 16, "pad_token_id": 0}),
    "BartForConditionalGeneration": ("BartConfig", SEQUENCES),
    "RobertaForMaskedLM": ("RobertaConfig", ATTENTION),
    "AlbertForMaskedLM": ("AlbertConfig", ATTENTION | {"embedding_size": 32}),
    "ElectraForMaskedLM": ("ElectraConfig", ATTENTION | {"embedding_size": 32}),
    "ViTForImageClassification": ("ViTConfig", PICTURES),
    "Dinov2ForImageClassification": ("Dinov2Config", PICTURES | {"mlp_ratio": 2}),
}


@pytest.fixture(params=MODELS)
def made(request):
    config, settings = MODELS[request.param]
    torch.manual_seed(0)
    model = getattr(transformers, request.param)(getattr(transformers, config)(**settings))
    inputs = PIXELS if "Image" in request.param else BOTH if "Conditional" in request.param else TOKENS
    return model.eval().requires_grad_(False), inputs


def test_bit_equal_without_arguments(made, device):
    check(*made, device)
