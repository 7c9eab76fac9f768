"""Models of transformers and diffusers, saved and streamed from their files, bit-equal with the loaded model."""

import logging
from functools import partial

import pytest
import torch
from models import Net, host, refused, sgd, size_of
from pipelines_test import flux, image, stable_diffusion
from zoo import diffusers, first, flux_transformer, image_of, llava, made, transformers, unet

import libstagehand as sh
import libstagehand.torch as st


def in_a_quarter(model, cls, folder, inputs, want, **options):
    """Streams the files, and compares. Returns the streamed model, closed."""
    with host(size_of(model) // 4) as device, torch.no_grad():
        with st.from_pretrained(folder, cls, device, **options) as streamed:
            assert not any(tensor.is_meta for tensor in streamed.module.buffers())
            for _ in range(3):
                assert torch.equal(first(streamed.module(**inputs)), want)
            assert streamed.stats().bytes_to_device > 2 * (size_of(model) * 3 // 4)
        assert device.memory().peak_bytes <= size_of(model) // 4
    return streamed


NAMES = (
    "LlamaForCausalLM ViTForImageClassification Qwen3MoeForCausalLM GPT2LMHeadModel BertForMaskedLM BertModel "
    "T5ForConditionalGeneration WhisperForConditionalGeneration"
)
MODELS = {name: partial(made, name, 8) for name in NAMES.split()}
MODELS["tied Llama"] = partial(made, "LlamaForCausalLM", 8, tie_word_embeddings=True)
MODELS |= {"Llama of halves": MODELS["LlamaForCausalLM"], "Llava": llava}
MODELS["Flux"] = partial(flux_transformer, num_layers=3, num_single_layers=6)


@pytest.mark.parametrize("name", MODELS)
def test_bit_equal_with_the_loaded_model_in_a_quarter(name, tmp_path, caplog):
    model, inputs = MODELS[name]()
    model = model.to(torch.bfloat16) if "halves" in name else model
    model.save_pretrained(tmp_path, max_shard_size="100KB")
    # diffusers loads everything as float32 by default, and transformers as the configuration says.
    loaded = type(model).from_pretrained(tmp_path)
    assert "halves" not in name or loaded.dtype == torch.bfloat16
    with torch.no_grad():
        want = first(loaded(**inputs))
    caplog.set_level(logging.INFO, "libstagehand.torch")
    streamed = in_a_quarter(loaded, type(model), tmp_path, inputs, want)
    told = [record.getMessage() for record in caplog.records if record.name == "libstagehand.torch"]
    if name == "BertForMaskedLM":  # a bias that transformers makes anew, because another name has it in the file
        assert len(told) == 1 and told[0].endswith("model needs: cls.predictions.bias")
    else:
        assert not told
    # The model remains, over the mapped files.
    for one, other in zip(streamed.module.state_dict().values(), loaded.state_dict().values()):
        assert torch.equal(one, other)
    with torch.no_grad():
        assert torch.allclose(first(streamed.module(**inputs)), want)


def test_a_base_and_an_auto_class_and_another_type_and_a_subfolder(tmp_path, caplog):
    model, inputs = made("BertForMaskedLM", 8)
    model.save_pretrained(tmp_path)
    options = {"add_pooling_layer": False}
    base = transformers.BertModel.from_pretrained(tmp_path, **options)
    with torch.no_grad():
        want = base(**inputs).last_hidden_state
    in_a_quarter(base, transformers.BertModel, tmp_path, inputs, want, **options)
    model, inputs = made("LlamaForCausalLM", 8)
    model.save_pretrained(tmp_path / "inside")
    kind = transformers.AutoModelForCausalLM
    options = {"subfolder": "inside", "dtype": torch.bfloat16, "attn_implementation": "eager"}
    loaded = kind.from_pretrained(tmp_path, **options)
    with torch.no_grad():
        want = loaded(**inputs).logits
    caplog.set_level(logging.INFO, "libstagehand.torch")
    in_a_quarter(loaded, kind, tmp_path, inputs, want, **options)
    told = [record.getMessage() for record in caplog.records if record.name == "libstagehand.torch"]
    assert len(told) == 1 and told[0].startswith(f"LlamaForCausalLM: {size_of(loaded)} of {size_of(loaded)} bytes")


@pytest.fixture
def stored(tmp_path):
    model, inputs = made("LlamaForCausalLM", 8)
    model.save_pretrained(tmp_path)
    return model, inputs


def test_files_are_not_read_when_streaming_begins(device, tmp_path, stored):
    model, inputs = stored
    with st.from_pretrained(tmp_path, type(model), device, budget=size_of(model) // 4) as streamed:
        assert streamed._weights and all(weight.mapped for weight in streamed._weights)
    loaded = type(model).from_pretrained(tmp_path).requires_grad_(False)
    with st.stream(loaded, device, budget=size_of(model) // 4) as streamed:
        assert not any(weight.mapped for weight in streamed._weights)
    loaded.lm_head.weight *= 2  # in memory, not in the file
    want = loaded(**inputs).logits
    with st.stream(loaded, device, budget=size_of(model) // 4, mapped=True):
        assert torch.equal(loaded(**inputs).logits, want)


def test_a_file_that_shrinks_is_an_error(device, tmp_path, stored):
    model, inputs = stored
    streamed = st.from_pretrained(tmp_path, type(model), device, budget=size_of(model) // 4)
    streamed.module(**inputs)
    with open(tmp_path / "model.safetensors", "r+b") as file:
        file.truncate(4096)
    with pytest.raises(sh.OperationError, match="did its file shrink"):
        for _ in range(3):
            streamed.module(**inputs)
    streamed.close()


def test_training_from_files(device, tmp_path, stored):
    model, inputs = stored
    files = {path.name: path.read_bytes() for path in tmp_path.iterdir()}

    def train(model, step):
        model.train()
        for _ in range(3):
            model(**inputs, labels=inputs["input_ids"]).loss.backward()
            step()

    loaded = type(model).from_pretrained(tmp_path)
    optimizer = sgd(loaded.parameters())
    train(loaded, lambda: (optimizer.step(), optimizer.zero_grad()))
    with st.from_pretrained(tmp_path, type(model), device, budget=size_of(model) // 2, optimizer=sgd) as streamed:
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
    pipe = diffusers.DDPMPipeline(unet(), diffusers.DDPMScheduler())
    pipe.save_pretrained(tmp_path)
    # As loaded, because the CPU's kernels round by where weights lie, which is where the files have them.
    want, budget = image_of(diffusers.DiffusionPipeline.from_pretrained(tmp_path)), size_of(pipe.unet) // 4
    with st.from_pretrained(tmp_path, diffusers.DiffusionPipeline, "host", budget=budget) as streamed:
        assert isinstance(streamed, st.StreamedPipeline) and isinstance(streamed.pipe, diffusers.DDPMPipeline)
        assert streamed.parts["unet"]._weights and all(weight.mapped for weight in streamed.parts["unet"]._weights)
        assert torch.equal(image_of(streamed.pipe), want)


def test_what_is_refused(device, tmp_path):
    with refused("has no from_pretrained", TypeError):
        st.from_pretrained(tmp_path, Net, device)
    with refused("device_map= places the weights", ValueError):
        st.from_pretrained(tmp_path, transformers.LlamaForCausalLM, device, device_map="auto")
