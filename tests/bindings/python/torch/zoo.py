"""Small models of transformers and diffusers, made of their configurations, with inputs."""

import pytest
import torch

transformers = pytest.importorskip("transformers")
diffusers = pytest.importorskip("diffusers")

TOKENS = {"input_ids": torch.arange(24).reshape(2, 12) + 5}
BOTH = TOKENS | {"decoder_input_ids": TOKENS["input_ids"]}
PIXELS = {"pixel_values": torch.linspace(-1, 1, 3 * 64 * 64).reshape(1, 3, 64, 64)}

BASE = {"vocab_size": 99, "hidden_size": 64, "num_hidden_layers": 4}
ATTENTION = BASE | {"intermediate_size": 128, "num_attention_heads": 4, "max_position_embeddings": 64}
GROUPED = ATTENTION | {"num_key_value_heads": 2}
EXPERTS = GROUPED | {"num_experts_per_tok": 2, "moe_intermediate_size": 32, "num_experts": 4, "head_dim": 16}
OLD = {"vocab_size": 99, "n_embd": 64, "n_layer": 4, "n_head": 4, "n_positions": 64}
HALVES = {"vocab_size": 99, "d_model": 64, "d_ff": 128, "d_kv": 16, "num_heads": 4, "num_layers": 3}
HALF = {"layers": 2, "attention_heads": 4, "ffn_dim": 128}
SEQUENCES = {f"{half}_{key}": value for half in ("encoder", "decoder") for key, value in HALF.items()}
SEQUENCES |= {"vocab_size": 99, "d_model": 64, "max_position_embeddings": 64}
SPEECH = {"num_mel_bins": 8, "max_source_positions": 20, "max_target_positions": 20, "pad_token_id": 0}
SPEECH |= {"bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 1}
PICTURES = {key: ATTENTION[key] for key in ("hidden_size", "num_hidden_layers", "num_attention_heads")}
PICTURES |= {"intermediate_size": 128, "image_size": 64, "patch_size": 16}
SSM = {"state_size": 8, "num_heads": 8, "head_dim": 16, "n_groups": 1, "chunk_size": 8}
ZAMBA = {"layers_block_type": ["mamba", "hybrid"] * 2, "num_key_value_heads": 4, "mamba_d_state": 8, "chunk_size": 8}
ZAMBA |= {"mamba_ngroups": 1, "n_mamba_heads": 8, "num_mem_blocks": 1, "adapter_rank": 4}
JAMBA = {"attn_layer_period": 2, "attn_layer_offset": 1, "expert_layer_period": 2, "expert_layer_offset": 1}
JAMBA |= {"num_experts": 2, "mamba_d_state": 8, "mamba_dt_rank": 4, "use_mamba_kernels": False}
QWEN_NEXT = {"linear_num_value_heads": 4, "linear_num_key_heads": 2, "linear_key_head_dim": 16}
QWEN_NEXT |= {"linear_value_head_dim": 16, "shared_expert_intermediate_size": 32}
QWEN_NEXT |= {"layer_types": ["linear_attention", "full_attention"] * 2}
GEMMA_N = {"intermediate_size": [128] * 4, "head_dim": 16, "vocab_size_per_layer_input": 99, "laurel_rank": 8}
GEMMA_N |= {"hidden_size_per_layer_input": 8, "layer_types": ["sliding_attention", "full_attention"] * 2}
GEMMA_N |= {"num_kv_shared_layers": 0, "activation_sparsity_pattern": [0.0] * 4, "altup_num_inputs": 2}
SWITCH = HALVES | {"num_layers": 2, "num_decoder_layers": 2, "num_experts": 4}
SWITCH |= {"num_sparse_encoder_layers": 1, "num_sparse_decoder_layers": 1}
DISTANCES = {"relative_attention": True, "position_buckets": 8, "pos_att_type": ["p2c", "c2p"]}

# By the name of the class: the configuration and its arguments.
ARCHITECTURES = {
    "MambaForCausalLM": ("MambaConfig", BASE | {"state_size": 8}),
    "FalconMambaForCausalLM": ("FalconMambaConfig", BASE | {"state_size": 8}),
    "Mamba2ForCausalLM": ("Mamba2Config", BASE | SSM),
    "Zamba2ForCausalLM": ("Zamba2Config", ATTENTION | ZAMBA),
    "JambaForCausalLM": ("JambaConfig", GROUPED | JAMBA),
    "Qwen3NextForCausalLM": ("Qwen3NextConfig", EXPERTS | QWEN_NEXT),
    "Gemma3nForCausalLM": ("Gemma3nTextConfig", GROUPED | GEMMA_N),
    "RecurrentGemmaForCausalLM": ("RecurrentGemmaConfig", GROUPED | {"lru_width": 64, "attention_window_size": 16}),
    "RwkvForCausalLM": ("RwkvConfig", BASE | {"context_length": 32, "rescale_every": 2}),
    "DebertaV2ForMaskedLM": ("DebertaV2Config", ATTENTION | DISTANCES),
    "SwitchTransformersForConditionalGeneration": ("SwitchTransformersConfig", SWITCH),
    "LlamaForCausalLM": ("LlamaConfig", GROUPED),
    "MistralForCausalLM": ("MistralConfig", GROUPED),
    "MixtralForCausalLM": ("MixtralConfig", GROUPED | {"num_local_experts": 4, "num_experts_per_tok": 2}),
    "Qwen2ForCausalLM": ("Qwen2Config", GROUPED),
    "Qwen3ForCausalLM": ("Qwen3Config", GROUPED | {"head_dim": 16}),
    "Qwen3MoeForCausalLM": ("Qwen3MoeConfig", EXPERTS),
    "GemmaForCausalLM": ("GemmaConfig", GROUPED | {"head_dim": 16}),
    "Gemma2ForCausalLM": ("Gemma2Config", GROUPED | {"head_dim": 16}),
    # Some of its layers see a window only, and have another kind of static cache.
    "Gemma3ForCausalLM": ("Gemma3TextConfig", GROUPED | {"head_dim": 16, "sliding_window": 8}),
    "Phi3ForCausalLM": ("Phi3Config", GROUPED | {"pad_token_id": 0}),
    "PhiForCausalLM": ("PhiConfig", ATTENTION),
    "GPT2LMHeadModel": ("GPT2Config", OLD),
    "GPTNeoXForCausalLM": ("GPTNeoXConfig", ATTENTION),
    "GPTJForCausalLM": ("GPTJConfig", OLD | {"rotary_dim": 8}),
    "CodeGenForCausalLM": ("CodeGenConfig", OLD | {"rotary_dim": 8}),
    "GPTBigCodeForCausalLM": ("GPTBigCodeConfig", OLD),
    "BloomForCausalLM": ("BloomConfig", {"vocab_size": 99, "hidden_size": 64, "n_layer": 4, "n_head": 4}),
    "FalconForCausalLM": ("FalconConfig", ATTENTION),
    "OPTForCausalLM": ("OPTConfig", ATTENTION | {"ffn_dim": 128, "word_embed_proj_dim": 32, "pad_token_id": 1}),
    "StableLmForCausalLM": ("StableLmConfig", ATTENTION | {"num_key_value_heads": 4}),
    "Starcoder2ForCausalLM": ("Starcoder2Config", GROUPED),
    "Olmo2ForCausalLM": ("Olmo2Config", GROUPED),
    "CohereForCausalLM": ("CohereConfig", GROUPED),
    "GraniteForCausalLM": ("GraniteConfig", GROUPED),
    "NemotronForCausalLM": ("NemotronConfig", GROUPED),
    "GlmForCausalLM": ("GlmConfig", GROUPED | {"head_dim": 16, "pad_token_id": 0}),
    "BartForConditionalGeneration": ("BartConfig", SEQUENCES),
    "T5ForConditionalGeneration": ("T5Config", HALVES),
    "BertForMaskedLM": ("BertConfig", ATTENTION),
    "BertModel": ("BertConfig", ATTENTION),
    "RobertaForMaskedLM": ("RobertaConfig", ATTENTION),
    "AlbertForMaskedLM": ("AlbertConfig", ATTENTION | {"embedding_size": 32}),
    "ElectraForMaskedLM": ("ElectraConfig", ATTENTION | {"embedding_size": 32}),
    "ViTForImageClassification": ("ViTConfig", PICTURES),
    "Dinov2ForImageClassification": ("Dinov2Config", PICTURES | {"mlp_ratio": 2}),
    "BeitModel": ("BeitConfig", PICTURES),
    "ConvNextForImageClassification": ("ConvNextConfig", {"hidden_sizes": [16, 32, 48, 64], "depths": [1, 1, 3, 1]}),
    "CLIPModel": ("CLIPConfig", {"text_config": ATTENTION, "vision_config": PICTURES, "projection_dim": 32}),
    "WhisperForConditionalGeneration": ("WhisperConfig", SEQUENCES | SPEECH),
}  # fmt: skip


def made(name, layers=4, **options):
    """Returns a model of a class of transformers, and its inputs."""
    config, settings = ARCHITECTURES[name]
    torch.manual_seed(0)
    settings = settings | {key: layers for key in ("num_hidden_layers", "n_layer") if key in settings} | options
    model = getattr(transformers, name)(getattr(transformers, config)(**settings))
    if name.startswith("Whisper"):
        inputs = {"input_features": torch.linspace(-1, 1, 320).reshape(1, 8, 40)}
        inputs["decoder_input_ids"] = TOKENS["input_ids"][:1, :5]
    elif name == "CLIPModel":
        inputs = TOKENS | PIXELS
    elif "Image" in name or name == "BeitModel":
        inputs = PIXELS
    else:
        inputs = BOTH if "Conditional" in name else TOKENS
    if name.startswith("Switch"):
        model = model.to(torch.bfloat16)
    return model.eval().requires_grad_(False), inputs


def llama(layers=4, **options):
    return made("LlamaForCausalLM", layers, **options)[0]


def llava():
    vision = transformers.CLIPVisionConfig(**PICTURES | {"image_size": 16, "patch_size": 4})
    text = transformers.LlamaConfig(**GROUPED | {"vocab_size": 128, "num_hidden_layers": 8})
    config = transformers.LlavaConfig(vision_config=vision, text_config=text, image_token_index=127)
    tokens = torch.arange(24)[None] + 5
    tokens[:, 2:18] = 127
    model = transformers.LlavaForConditionalGeneration(config)
    return model.eval(), {"input_ids": tokens, "pixel_values": torch.randn(1, 3, 16, 16)}


def flux_transformer(width=32, **options):
    """Of four heads or so, with `width` numbers of text for each token."""
    heads = {"attention_head_dim": 16, "num_attention_heads": 2, "axes_dims_rope": [4, 4, 8]}
    layers = {"num_layers": 2, "num_single_layers": 4}
    model = diffusers.FluxTransformer2DModel(
        **{"patch_size": 1, "in_channels": 4, "joint_attention_dim": width, "pooled_projection_dim": width}
        | heads | layers | options
    )  # fmt: skip
    inputs = {"hidden_states": torch.randn(1, 16, 4), "encoder_hidden_states": torch.randn(1, 6, width)}
    inputs |= {"pooled_projections": torch.randn(1, width), "timestep": torch.tensor([1.0])}
    return model.eval(), inputs | {"img_ids": torch.randn(16, 3), "txt_ids": torch.randn(6, 3)}


def tensors(out):
    """All tensors of what a model returns."""
    if isinstance(out, torch.Tensor):
        return [out]
    values = out.values() if hasattr(out, "values") else out if isinstance(out, (tuple, list)) else []
    return [tensor for value in values for tensor in tensors(value)]


def same(got, want):
    return all(torch.equal(one, other) for one, other in zip(tensors(got), tensors(want), strict=True))


def first(out):
    return next(out[key] for key in ("logits", "sample", "last_hidden_state") if key in out)


def tokens_of(model, ids, count=5, **options):
    return model.generate(ids, max_new_tokens=count, do_sample=False, pad_token_id=0, **options)


def unet(**options):
    kinds = {"down_block_types": ("DownBlock2D", "AttnDownBlock2D"), "up_block_types": ("AttnUpBlock2D", "UpBlock2D")}
    sizes = {"block_out_channels": (16, 32), "norm_num_groups": 8, "layers_per_block": 2, "sample_size": 8}
    return diffusers.UNet2DModel(**sizes | kinds | options)


def image_of(pipe):
    """Of a pipeline that takes no text."""
    pipe.set_progress_bar_config(disable=True)
    made = pipe(generator=torch.Generator().manual_seed(0), num_inference_steps=2, output_type="np")
    return torch.from_numpy(made.images)
