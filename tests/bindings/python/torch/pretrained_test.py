"""Models of transformers and diffusers, saved and streamed from their files, bit-equal with the loaded model."""

import logging

import pytest
import torch
from models import PAGE, Net, size_of
from pipelines_test import flux, image, stable_diffusion

import libstagehand as sh
import libstagehand.torch as st

diffusers = pytest.importorskip("diffusers")
transformers = pytest.importorskip("transformers")

SMALL = {
    "vocab_size": 128,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 8,
    "num_attention_heads": 4,
}


def ids():
    return {"input_ids": torch.randint(3, 128, (2, 11))}


def llama(**more):
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(**SMALL, num_key_value_heads=2, **more)), ids()


def llama_of_halves():
    model, inputs = llama()
    return model.to(torch.bfloat16), inputs


def vit():
    config = transformers.ViTConfig(**{**SMALL, "image_size": 16, "patch_size": 4, "num_labels": 5})
    return transformers.ViTForImageClassification(config), {"pixel_values": torch.randn(2, 3, 16, 16)}


def llava():
    vision = transformers.CLIPVisionConfig(
        hidden_size=32, intermediate_size=48, num_hidden_layers=4, num_attention_heads=4, image_size=16, patch_size=4
    )
    text = transformers.LlamaConfig(**SMALL, num_key_value_heads=2)
    config = transformers.LlavaConfig(vision_config=vision, text_config=text, image_token_index=127)
    tokens = torch.randint(3, 120, (1, 24))
    tokens[:, 2:18] = 127
    return transformers.LlavaForConditionalGeneration(config), {
        "input_ids": tokens,
        "pixel_values": torch.randn(1, 3, 16, 16),
    }


def qwen3_moe():
    config = transformers.Qwen3MoeConfig(
        **SMALL, num_key_value_heads=2, moe_intermediate_size=48, num_experts=4, num_experts_per_tok=2, head_dim=16
    )
    return transformers.Qwen3MoeForCausalLM(config), ids()


def gpt2():
    config = transformers.GPT2Config(vocab_size=128, n_positions=64, n_embd=64, n_layer=8, n_head=4)
    return transformers.GPT2LMHeadModel(config), ids()


def bert():
    return transformers.BertForMaskedLM(transformers.BertConfig(**SMALL)), ids()


def base_of_bert():
    return transformers.BertModel(transformers.BertConfig(**SMALL)), ids()


def t5():
    config = transformers.T5Config(vocab_size=128, d_model=64, d_ff=96, d_kv=16, num_layers=6, num_heads=4)
    return transformers.T5ForConditionalGeneration(config), {
        **ids(),
        "decoder_input_ids": torch.randint(3, 128, (2, 5)),
    }


def whisper():
    config = transformers.WhisperConfig(
        vocab_size=128,
        d_model=64,
        encoder_layers=4,
        decoder_layers=4,
        encoder_attention_heads=4,
        decoder_attention_heads=4,
        encoder_ffn_dim=96,
        decoder_ffn_dim=96,
        num_mel_bins=8,
        max_source_positions=20,
        max_target_positions=20,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
        decoder_start_token_id=1,
    )
    return transformers.WhisperForConditionalGeneration(config), {
        "input_features": torch.randn(1, 8, 40),
        "decoder_input_ids": torch.randint(3, 128, (1, 5)),
    }


def flux_transformer():
    model = diffusers.FluxTransformer2DModel(
        patch_size=1,
        in_channels=4,
        num_layers=3,
        num_single_layers=6,
        attention_head_dim=16,
        num_attention_heads=2,
        joint_attention_dim=32,
        pooled_projection_dim=32,
        axes_dims_rope=[4, 4, 8],
    )
    return model, {
        "hidden_states": torch.randn(1, 16, 4),
        "encoder_hidden_states": torch.randn(1, 6, 32),
        "pooled_projections": torch.randn(1, 32),
        "timestep": torch.tensor([1.0]),
        "img_ids": torch.randn(16, 3),
        "txt_ids": torch.randn(6, 3),
    }


def load(cls, folder, **options):
    return cls.from_pretrained(folder, **options)


def first(out):
    return next(out[key] for key in ("logits", "sample", "last_hidden_state") if key in out)


def in_a_quarter(model, cls, folder, inputs, want, **options):
    """Streams the files, and compares. Returns the streamed model, closed."""
    with (
        sh.Device("host", page_bytes=PAGE, budget_bytes=size_of(model) // 4, backend_options="poison=1") as device,
        torch.no_grad(),
    ):
        with st.from_pretrained(folder, cls, device, **options) as streamed:
            assert not any(tensor.is_meta for tensor in streamed.module.buffers())
            for _ in range(3):
                assert torch.equal(first(streamed.module(**inputs)), want)
            assert streamed.stats().bytes_to_device > 2 * (size_of(model) * 3 // 4)
        assert device.memory().peak_bytes <= size_of(model) // 4
    return streamed


MODELS = [
    llama,
    lambda: llama(tie_word_embeddings=True),
    llama_of_halves,
    vit,
    llava,
    qwen3_moe,
    gpt2,
    bert,
    base_of_bert,
    t5,
    whisper,
    flux_transformer,
]


@pytest.mark.parametrize("make", MODELS)
def test_bit_equal_with_the_loaded_model_in_a_quarter(make, tmp_path, caplog):
    model, inputs = make()
    model.eval().save_pretrained(tmp_path, max_shard_size="100KB")
    # diffusers loads everything as float32 by default, and transformers as the configuration says.
    loaded = load(type(model), tmp_path)
    if make is llama_of_halves:
        assert loaded.dtype == torch.bfloat16
    with torch.no_grad():
        want = first(loaded(**inputs))
    caplog.set_level(logging.INFO, "libstagehand.torch")
    streamed = in_a_quarter(loaded, type(model), tmp_path, inputs, want)
    told = [record.getMessage() for record in caplog.records if record.name == "libstagehand.torch"]
    if make is qwen3_moe:
        assert len(told) == 1 and "model.layers.0.mlp.experts.gate_up_proj" in told[0] and "q_proj" not in told[0]
    elif make is bert:  # a bias that transformers makes anew, because another name has it in the file
        assert len(told) == 1 and told[0].endswith("model needs: cls.predictions.bias")
    else:
        assert not told
    # The model remains, over the mapped files.
    for one, other in zip(streamed.module.state_dict().values(), loaded.state_dict().values()):
        assert torch.equal(one, other)
    with torch.no_grad():
        assert torch.allclose(first(streamed.module(**inputs)), want)


def test_the_base_of_a_model_and_another_head(tmp_path):
    model, inputs = bert()
    model.eval().save_pretrained(tmp_path)
    base = load(transformers.BertModel, tmp_path, add_pooling_layer=False)
    with torch.no_grad():
        want = base(**inputs).last_hidden_state
    in_a_quarter(base, transformers.BertModel, tmp_path, inputs, want, add_pooling_layer=False)


def test_an_auto_class_another_type_and_a_subfolder(tmp_path, caplog):
    model, inputs = llama()
    model.eval().save_pretrained(tmp_path / "inside")
    loaded = load(
        transformers.AutoModelForCausalLM,
        tmp_path,
        subfolder="inside",
        dtype=torch.bfloat16,
        attn_implementation="eager",
    )
    with torch.no_grad():
        want = loaded(**inputs).logits
    caplog.set_level(logging.INFO, "libstagehand.torch")
    in_a_quarter(
        loaded,
        transformers.AutoModelForCausalLM,
        tmp_path,
        inputs,
        want,
        subfolder="inside",
        dtype=torch.bfloat16,
        attn_implementation="eager",
    )
    told = [record.getMessage() for record in caplog.records if record.name == "libstagehand.torch"]
    assert len(told) == 1 and told[0].startswith(f"LlamaForCausalLM: {size_of(loaded)} of {size_of(loaded)} bytes")


def test_files_are_not_read_when_streaming_begins(device, tmp_path):
    model, inputs = llama()
    model.eval().save_pretrained(tmp_path)
    with st.from_pretrained(tmp_path, type(model), device, budget=size_of(model) // 4) as streamed:
        assert streamed._weights and all(weight.mapped for weight in streamed._weights)
    loaded = type(model).from_pretrained(tmp_path).requires_grad_(False)
    with st.stream(loaded, device, budget=size_of(model) // 4) as streamed:
        assert not any(weight.mapped for weight in streamed._weights)
    loaded.lm_head.weight *= 2  # in memory, not in the file
    want = loaded(**inputs).logits
    with st.stream(loaded, device, budget=size_of(model) // 4, mapped=True):
        assert torch.equal(loaded(**inputs).logits, want)


def test_a_file_that_shrinks_is_an_error(device, tmp_path):
    model, inputs = llama()
    model.eval().save_pretrained(tmp_path)
    streamed = st.from_pretrained(tmp_path, type(model), device, budget=size_of(model) // 4)
    streamed.module(**inputs)
    with open(tmp_path / "model.safetensors", "r+b") as file:
        file.truncate(4096)
    with pytest.raises(sh.OperationError, match="did its file shrink"):
        for _ in range(3):
            streamed.module(**inputs)
    streamed.close()


def test_adapters_over_a_model_from_files(device, tmp_path):
    peft = pytest.importorskip("peft")
    model, inputs = llama()
    model.save_pretrained(tmp_path)
    config = peft.LoraConfig(target_modules=["q_proj", "down_proj"], r=4, init_lora_weights=False)

    def adapted(base):
        torch.manual_seed(3)
        return peft.get_peft_model(base, config).train()

    def gradients(model):
        model(**inputs, labels=inputs["input_ids"]).loss.backward()
        return {name: one.grad for name, one in model.named_parameters() if one.requires_grad}

    want = gradients(adapted(load(type(model), tmp_path)))
    mine = adapted(type(model).from_pretrained(tmp_path))
    with st.stream(mine, device, budget=size_of(model) // 3, mapped=True) as streamed:
        assert streamed._weights and all(weight.mapped for weight in streamed._weights)
        got = gradients(mine)
        assert want.keys() == got.keys() and all(torch.equal(one, want[name]) for name, one in got.items())


def test_training_from_files(device, tmp_path):
    model, inputs = llama()
    model.save_pretrained(tmp_path)
    files = {path.name: path.read_bytes() for path in tmp_path.iterdir()}

    def train(model, step):
        model.train()
        for _ in range(3):
            model(**inputs, labels=inputs["input_ids"]).loss.backward()
            step()

    loaded = type(model).from_pretrained(tmp_path)
    optimizer = torch.optim.SGD(loaded.parameters(), lr=0.1)
    train(loaded, lambda: (optimizer.step(), optimizer.zero_grad()))
    with st.from_pretrained(
        tmp_path,
        type(model),
        device,
        budget=size_of(model) // 2,
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.1),
    ) as streamed:
        train(streamed.module, lambda: None)
    for name, one in streamed.module.state_dict().items():
        assert torch.equal(one, loaded.state_dict()[name]), name
    assert files == {path.name: path.read_bytes() for path in tmp_path.iterdir()}


@pytest.mark.parametrize("make", [stable_diffusion, flux])
def test_the_models_of_a_pipeline_from_files(make, device, tmp_path):
    pipe = make()
    want = image(pipe)
    parts = {}
    for name in ("unet", "transformer", "vae", "text_encoder", "text_encoder_2"):
        if module := getattr(pipe, name, None):
            module.save_pretrained(tmp_path / name)
            parts[name] = type(module).from_pretrained(tmp_path / name)
    again = type(pipe)(**{**pipe.components, **parts})
    again.set_progress_bar_config(disable=True)
    with st.stream(again, device, mapped=True) as streamed:
        assert all(weight.mapped for part in streamed.parts.values() for weight in part._weights)
        assert torch.equal(image(again), want)


def test_a_pipeline_from_its_folder(tmp_path):
    unet = diffusers.UNet2DModel(
        block_out_channels=(16, 32),
        norm_num_groups=8,
        layers_per_block=2,
        sample_size=8,
        down_block_types=("DownBlock2D", "AttnDownBlock2D"),
        up_block_types=("AttnUpBlock2D", "UpBlock2D"),
    )
    pipe = diffusers.DDPMPipeline(unet, diffusers.DDPMScheduler())
    pipe.save_pretrained(tmp_path)

    def image(pipe):
        pipe.set_progress_bar_config(disable=True)
        return torch.from_numpy(
            pipe(generator=torch.Generator().manual_seed(0), num_inference_steps=3, output_type="np").images
        )

    # As loaded, because the CPU's kernels round by where weights lie, which is where the files have them.
    want = image(diffusers.DiffusionPipeline.from_pretrained(tmp_path))
    with st.from_pretrained(tmp_path, diffusers.DiffusionPipeline, "host", budget=size_of(unet) // 4) as streamed:
        assert isinstance(streamed, st.StreamedPipeline) and isinstance(streamed.pipe, diffusers.DDPMPipeline)
        assert streamed.parts["unet"]._weights and all(weight.mapped for weight in streamed.parts["unet"]._weights)
        assert torch.equal(image(streamed.pipe), want)


def test_what_is_refused(device, tmp_path):
    with pytest.raises(TypeError, match="has no from_pretrained"):
        st.from_pretrained(tmp_path, Net, device)
    with pytest.raises(ValueError, match="device_map= places the weights"):
        st.from_pretrained(tmp_path, transformers.LlamaForCausalLM, device, device_map="auto")
