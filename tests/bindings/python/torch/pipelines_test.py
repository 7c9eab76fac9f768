"""Pipelines of diffusers, built from small configurations: their models share the budget of one device."""

import copy
import inspect
import threading
import types

import pytest
import torch
from models import Net, Pipeline, host, refused, size_of
from torch import nn
from zoo import diffusers, flux_transformer, transformers

import libstagehand as sh
import libstagehand.torch as st


class Tokenizer:
    """Makes ids of letters, without the files that a real tokenizer needs."""

    model_max_length = 16

    def tokenize(self, text):
        return list(text)

    @property
    def added_tokens_encoder(self):
        return {}

    def __call__(self, texts, **_):
        texts = [texts] if isinstance(texts, str) else texts
        ids = [[min(ord(letter), 127) for letter in text[:14]] for text in texts]
        rows = [[1, *row, *[2] * (15 - len(row))] for row in ids]
        return types.SimpleNamespace(input_ids=torch.tensor(rows), attention_mask=None)

    def batch_decode(self, ids):
        return ["" for _ in ids]


def clip():
    sizes = {"vocab_size": 128, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 4}
    sizes |= {"num_attention_heads": 4, "max_position_embeddings": 16, "projection_dim": 32}
    config = transformers.CLIPTextConfig(bos_token_id=1, eos_token_id=2, **sizes)
    return transformers.CLIPTextModel(config).eval()


def stable_diffusion():
    kinds = {"down_block_types": ("DownBlock2D", "CrossAttnDownBlock2D")}
    kinds |= {"up_block_types": ("CrossAttnUpBlock2D", "UpBlock2D")}
    sizes = {"block_out_channels": (16, 32), "norm_num_groups": 8}
    unet = diffusers.UNet2DConditionModel(**kinds, **sizes, layers_per_block=2, sample_size=16, cross_attention_dim=32)
    kinds = {
        f"{way}_block_types": [f"{name}Block2D"] * 2 for way, name in (("down", "DownEncoder"), ("up", "UpDecoder"))
    }
    vae = diffusers.AutoencoderKL(**kinds, **sizes, latent_channels=4)
    scheduler = diffusers.DDIMScheduler(clip_sample=False, set_alpha_to_one=False, steps_offset=1)
    parts = {"unet": unet.eval(), "vae": vae.eval(), "text_encoder": clip(), "tokenizer": Tokenizer()}
    parts |= {"scheduler": scheduler, "safety_checker": None, "feature_extractor": None}
    return quiet(diffusers.StableDiffusionPipeline(**parts, requires_safety_checker=False))


def flux():
    sizes = {"vocab_size": 128, "d_model": 32, "d_ff": 48, "d_kv": 8, "num_layers": 4, "num_heads": 4}
    t5 = transformers.T5EncoderModel(transformers.T5Config(**sizes, feed_forward_proj="gated-gelu")).eval()
    sizes = {"sample_size": 32, "block_out_channels": (8,), "norm_num_groups": 1, "latent_channels": 1}
    sizes |= {"use_quant_conv": False, "use_post_quant_conv": False, "shift_factor": 0.0609, "scaling_factor": 1.5035}
    parts = {"text_encoder": clip(), "text_encoder_2": t5, "tokenizer": Tokenizer(), "tokenizer_2": Tokenizer()}
    parts |= {"transformer": flux_transformer()[0], "vae": diffusers.AutoencoderKL(**sizes).eval()}
    return quiet(diffusers.FluxPipeline(scheduler=diffusers.FlowMatchEulerDiscreteScheduler(), **parts))


def quiet(pipe):
    pipe.set_progress_bar_config(disable=True)
    for module in modules(pipe).values():
        module.requires_grad_(False)
    return pipe


def modules(pipe):
    return {name: one for name, one in pipe.components.items() if isinstance(one, nn.Module)}


def size_of_pipe(pipe):
    return sum(map(size_of, modules(pipe).values()))


def image(pipe):
    more = {"height": 16, "width": 16, "max_sequence_length": 16} if hasattr(pipe, "transformer") else {}
    return pipe(
        "a tiny test",
        num_inference_steps=3,
        guidance_scale=5.0,
        generator=torch.Generator().manual_seed(0),
        output_type="pt",
        **more,
    ).images


@pytest.fixture(params=[stable_diffusion, flux])
def pipe(request):
    return request.param()


@pytest.mark.parametrize("divisor", [2, 7])
def test_images_are_bit_equal_in_a_part_of_the_memory(pipe, divisor):
    if divisor == 2 and hasattr(pipe, "unet"):
        pipe.vae.enable_tiling()
        pipe.vae.enable_slicing()
        pipe.vae.tile_latent_min_size = 4
    want, budget = image(pipe), size_of_pipe(pipe) // divisor
    with host(budget) as device:
        with st.stream(pipe, device) as streamed:
            assert set(streamed.parts) == set(modules(pipe))
            assert pipe.device == pipe._execution_device == torch.device("cpu")
            for _ in range(3):
                assert torch.equal(image(pipe), want)
            stats = streamed.stats()
            assert set(stats) == set(streamed.parts) and all(one.steps >= 3 for one in stats.values())
            assert sum(one.bytes_to_device for one in stats.values()) > size_of_pipe(pipe)
        assert device.memory().peak_bytes <= budget
    assert torch.equal(image(pipe), want)


def test_the_call_without_a_with(pipe):
    want = image(pipe)
    before = {name: [p.data_ptr() for p in module.parameters()] for name, module in modules(pipe).items()}
    streamed = st.stream(pipe, "host", budget=size_of_pipe(pipe) // 2)
    assert (
        isinstance(streamed, st.StreamedPipeline) and streamed.device.memory().budget_bytes <= size_of_pipe(pipe) // 2
    )
    assert torch.equal(image(pipe), want)
    streamed.close()
    streamed.close()
    assert before == {name: [p.data_ptr() for p in module.parameters()] for name, module in modules(pipe).items()}
    assert torch.equal(image(pipe), want)


def test_only_some_parts(pipe, monkeypatch):
    want = image(pipe)
    main = "unet" if hasattr(pipe, "unet") else "transformer"
    moved = []
    from libstagehand.torch import _pipelines

    put_outside = _pipelines.put_outside
    monkeypatch.setattr(
        _pipelines, "put_outside", lambda found, *rest: (moved.extend(found), put_outside(found, *rest))
    )
    with host(size_of(getattr(pipe, main)) // 2) as device, st.stream(pipe, device, parts=[main, "vae"]) as streamed:
        assert list(streamed.parts) == [main, "vae"]
        assert sum(one.tensor.numel() for one in moved) >= sum(p.numel() for p in pipe.text_encoder.parameters())
        assert torch.equal(image(pipe), want)
        assert "decoder.conv_in.weight" in sum(streamed.parts["vae"].blocks().values(), [])
    assert torch.equal(image(pipe), want)


def test_a_decode_is_one_step_that_ends():
    pipe = stable_diffusion()
    z = torch.randn(1, 4, 8, 8)
    x = torch.randn(1, 3, 16, 16)
    with torch.no_grad():
        want, code = pipe.vae.decode(z).sample, pipe.vae.encode(x).latent_dist.mean
        with host(size_of_pipe(pipe) // 2) as device, st.stream(pipe, device, share_wait=0.0) as streamed:
            vae = streamed.parts["vae"]
            for steps in range(1, 4):
                assert torch.equal(pipe.vae.decode(z).sample, want)
                assert vae.stats().steps == 2 * steps - 1
                assert torch.equal(pipe.vae.encode(x).latent_dist.mean, code)
                assert vae.stats().steps == 2 * steps
            # Another thread gets the memory at once, because no step is left open.
            got = []
            thread = threading.Thread(target=lambda: got.append(image(pipe)))
            pipe.vae.decode(z)
            thread.start()
            thread.join()
            assert torch.equal(got[0], image(pipe))
            assert "return_dict" in inspect.signature(pipe.vae.decode).parameters
            assert pipe.vae(x).sample.shape == x.shape  # calls encode() and decode() in its own step
            assert torch.equal(copy.deepcopy(pipe.vae).decode(z).sample, want)
    assert "decode" not in pipe.vae.__dict__ and "encode" not in pipe.vae.__dict__


def test_methods_of_a_single_model_are_steps_too(device):
    vae = stable_diffusion().vae
    mine = vae.decode
    vae.decode = lambda *args: mine(*args)  # as a program does that compiles the method
    given = vae.decode
    z = torch.randn(1, 4, 8, 8)
    with torch.no_grad():
        want = vae.decode(z).sample
        with st.stream(vae, device, budget=size_of(vae) // 3) as streamed:
            assert torch.equal(vae.decode(z).sample, want) and streamed.stats().steps == 1
            with streamed.step():
                assert torch.equal(vae.decode(z).sample, want)
            assert streamed.stats().steps == 2
    assert vae.decode is given


def test_a_pipeline_that_calls_a_part_of_a_model(tokens):
    one, two = Net().requires_grad_(False), Net().requires_grad_(False)

    def call():
        hidden = one(tokens)["hidden"]
        hidden = one.layers[3](hidden)  # a step that nothing ends but the next one
        return one.head(two(tokens, hidden)["hidden"])

    want = call()
    with host(size_of(one) // 2) as device, st.stream(Pipeline(one=one, two=two), device, share_wait=0.0):
        for _ in range(3):
            assert torch.equal(call(), want)


def test_any_object_with_components(device, tokens):
    one, two = Net().requires_grad_(False), Net(layers=3).requires_grad_(False)
    want = one(tokens)["logits"], two(tokens)["logits"]
    pipe = Pipeline(first=one, same=one, second=two, name="text", none=None, empty=nn.Identity())
    with st.stream(pipe, device) as streamed:
        assert list(streamed.parts) == ["first", "same", "second"]
        assert streamed.parts["first"] is streamed.parts["same"]
        assert torch.equal(one(tokens)["logits"], want[0]) and torch.equal(two(tokens)["logits"], want[1])
        assert "Pipeline" in repr(streamed)
        with pytest.raises(TypeError, match="copied or pickled"):
            copy.copy(streamed)


def test_calls_of_the_whole_model_within_a_method_are_steps_of_their_own(device, tokens):
    class Encoder(Net):
        def encode(self, batches):
            return [self(batch)["hidden"] for batch in batches]

    net = Encoder().requires_grad_(False)
    with torch.no_grad():
        want = net.encode([tokens, tokens, tokens])
        with st.stream(net, device, budget=size_of(net) // 4) as streamed:
            assert all(torch.equal(*pair) for pair in zip(net.encode([tokens, tokens, tokens]), want))
            assert streamed.stats().steps == 3
            with pytest.raises(TypeError):
                net.encode(tokens, tokens)
            with pytest.raises((IndexError, RuntimeError)):
                net.encode([tokens, tokens + 1000])
            assert torch.equal(net.encode([tokens])[0], want[0])


class Plain(nn.Module):
    """A model without lists of layers, so that its division depends on the memory alone."""

    def __init__(self):
        super().__init__()
        for name in "abcdefgh":
            setattr(self, name, nn.Linear(64, 64))

    def forward(self, x):
        for layer in self.children():
            x = layer(x)
        return x


def test_many_models_in_half_of_their_memory():
    models = {f"model{i}": Plain().requires_grad_(False) for i in range(8)}
    x = torch.randn(2, 64)
    want = [model(x) for model in models.values()]
    with host(4 * size_of(models["model0"])) as device, st.stream(Pipeline(**models), device):
        for _ in range(3):
            assert all(torch.equal(model(x), one) for model, one in zip(models.values(), want))


def test_a_module_without_parameters_is_moved(device, net):
    table = nn.Module()
    table.register_buffer("times", torch.arange(8))
    with st.stream(Pipeline(net=net, table=table), device) as streamed:
        assert list(streamed.parts) == ["net"]
    assert torch.equal(table.times, torch.arange(8))


def test_what_is_refused(device):
    net = Net().requires_grad_(False)
    first, pipe = Pipeline(first=net), Pipeline(first=net, second=Net().to("meta"))
    simple = types.SimpleNamespace(model=net)
    for given, options, why, error in (
        (
            pipe,
            {"parts": ["third"]},
            r"parts=\['third'\] are no modules of the pipeline, which has first, se",
            ValueError,
        ),
        (pipe, {"parts": ["first"]}, "second.embed.weight is on the meta device", ValueError),
        (Pipeline(nothing=None), {}, "no part to stream", ValueError),
        (first, {"budget": 1 << 20}, r"share the budget of the Device: call device\.set_budget\(\)", ValueError),
        ("folder", {}, r"takes a torch\.nn\.Module, or a pipeline .* and not a str\.$", TypeError),
        (simple, {}, r"not a SimpleNamespace\. Stream its model: stream\(pipe\.model, \.\.\.\)", TypeError),
        (net, {"parts": ["first"]}, "unexpected keyword argument 'parts'", TypeError),
    ):
        with refused(why, error):
            st.stream(given, device, **options)
    with st.stream(Net().requires_grad_(False), device), refused("other models are streamed", sh.UsageError):
        st.stream(first, "host", budget=1 << 20)
    st.stream(first, device).close()


def test_a_failure_of_one_part_leaves_all_as_they_were(device, tokens):
    net, bad = Net().requires_grad_(False), Net().requires_grad_(False)
    bad.head.weight.grad = torch.ones_like(bad.head.weight)
    want = net(tokens)["logits"]
    with pytest.raises(ValueError, match="has a gradient") as raised:
        st.stream(Pipeline(first=net, second=bad), device)
    assert raised.value.__notes__ == ["The model is 'second' of the pipeline."]
    assert torch.equal(net(tokens)["logits"], want)
    assert device.memory().runtime_count == 0


def test_a_pipeline_that_diffusers_offloads_is_refused():
    pipe = stable_diffusion()
    want = image(pipe)
    pipe.enable_sequential_cpu_offload(device="cpu")
    with pytest.raises(ValueError, match=r"offloaded.*call pipe\.remove_all_hooks\(\) before"):
        st.stream(pipe, "host")
    pipe.remove_all_hooks()
    with st.stream(pipe, "host"):
        assert torch.equal(image(pipe), want)


def test_a_model_that_is_frozen_in_part(device, tokens, caplog):
    """It is told of. A part of a pipeline is streamed all the same."""
    net = Net()
    net.head.requires_grad_(False)
    st.stream(net, device).close()
    (record,) = caplog.records
    assert record.levelname == "WARNING" and record.name == "libstagehand.torch"
    assert "require a gradient, and stay on the device" in record.getMessage()
    caplog.clear()
    net.requires_grad_(False)
    net.head.requires_grad_(True)  # what adapters look like
    st.stream(net, device).close()
    net.requires_grad_(True).embed.requires_grad_(False)
    with torch.no_grad():
        want = net(tokens)["logits"]
        with st.stream(Pipeline(first=net), device) as streamed:
            assert torch.equal(net(tokens)["logits"], want)
            assert {"head.weight", "layers.7.up.weight"} <= set(sum(streamed.parts["first"].blocks().values(), []))
    assert not caplog.records
    assert {name for name, one in net.named_parameters() if not one.requires_grad} == {"embed.weight"}
