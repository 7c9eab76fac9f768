"""Models of transformers and diffusers whose files `stagehand pack` has packed."""

import errno
import os
import pathlib
import shutil
import subprocess

import pytest
import torch

import libstagehand as sh
import libstagehand.torch as st

transformers = pytest.importorskip("transformers")
diffusers = pytest.importorskip("diffusers")
SafetensorError = pytest.importorskip("safetensors").SafetensorError
COMMAND = os.environ.get("STAGEHAND_COMMAND", "")
PAGE = 64 << 10

pytestmark = pytest.mark.skipif(not COMMAND, reason="STAGEHAND_COMMAND names no command that packs")


def size_of(model):
    return sum(one.nbytes for one in {id(one): one for one in model.parameters()}.values())


def llama(**options):
    config = transformers.LlamaConfig(
        hidden_size=256,
        intermediate_size=512,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        vocab_size=512,
        max_position_embeddings=64,
        **options,
    )
    return transformers.LlamaForCausalLM(config), {"input_ids": torch.arange(12)[None]}


def experts():
    config = transformers.Qwen3MoeConfig(
        hidden_size=256,
        intermediate_size=512,
        moe_intermediate_size=256,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        num_experts=4,
        num_experts_per_tok=2,
        vocab_size=512,
        max_position_embeddings=64,
        head_dim=64,
    )
    return transformers.Qwen3MoeForCausalLM(config), {"input_ids": torch.arange(12)[None]}


def flux():
    model = diffusers.FluxTransformer2DModel(
        patch_size=1,
        in_channels=4,
        num_layers=2,
        num_single_layers=2,
        attention_head_dim=64,
        num_attention_heads=4,
        joint_attention_dim=64,
        pooled_projection_dim=64,
        axes_dims_rope=[16, 24, 24],
    )
    return model, {
        "hidden_states": torch.randn(1, 16, 4),
        "encoder_hidden_states": torch.randn(1, 6, 64),
        "pooled_projections": torch.randn(1, 64),
        "timestep": torch.tensor([1.0]),
        "img_ids": torch.randn(16, 3),
        "txt_ids": torch.randn(6, 3),
    }


def saved(make, tmp_path, dtype=torch.bfloat16, shard="2MB"):
    """The model, its plain folder and its packed one, and inputs."""
    torch.manual_seed(1)
    model, inputs = make()
    model = model.eval().to(dtype)
    plain, packed = tmp_path / "plain", tmp_path / "packed"
    model.save_pretrained(plain, max_shard_size=shard)
    files = list(plain.glob("*.safetensors"))
    if len(files) == 1:
        packed.mkdir()
    to = packed / files[0].name if len(files) == 1 else packed
    run = subprocess.run([COMMAND, "pack", plain, "-o", to], capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    for file in plain.iterdir():  # the command packs the files with tensors alone
        if not (packed / file.name).exists():
            shutil.copy(file, packed)
    return model, plain, packed, inputs


def first(out):
    return next(out[key] for key in ("logits", "sample", "last_hidden_state") if key in out)


def load(cls, folder, **options):
    return cls.from_pretrained(folder, **options)


def streams(cls, plain, packed, inputs, device, **options):
    """Streams the packed folder, and compares with the model after streaming, and with the plain folder. The CPU's
    kernels round by where weights lie, which differs between the files of both folders. Returns the streamed model,
    which is closed.
    """
    loaded = load(cls, plain, **options)
    with torch.no_grad():
        want = first(loaded(**inputs))
        with st.from_pretrained(packed, cls, device, budget=size_of(loaded) // 2, **options) as streamed:
            made = [first(streamed.module(**inputs)) for _ in range(3)]
            state = {name: one.clone() for name, one in streamed.module.state_dict().items()}
        after = first(streamed.module(**inputs))
    assert all(torch.equal(one, after) for one in made)
    torch.testing.assert_close(after, want)
    for name, tensor in loaded.state_dict().items():
        assert torch.equal(state[name], tensor), name
        assert torch.equal(streamed.module.state_dict()[name], tensor), f"{name}, after the end"
    return streamed


@pytest.fixture
def device():
    with sh.Device("host", page_bytes=PAGE, backend_options="poison=1") as device:
        yield device


@pytest.mark.parametrize("tied", [False, True])
def test_a_packed_folder_streams_packed(device, tmp_path, tied):
    model, plain, packed, inputs = saved(lambda: llama(tie_word_embeddings=tied), tmp_path)
    with st.from_pretrained(packed, transformers.LlamaForCausalLM, device, budget=size_of(model) // 3) as streamed:
        sizes = [weight.bytes for weight in streamed._weights if weight.unread is not None]
        assert sizes and sorted(sizes) == sorted(one.bytes for one in streamed._weights if one.bytes >= 64 << 10)
        for inside in (streamed.module, streamed.module.model):
            assert inside.name_or_path == inside.config._name_or_path == str(packed)
    streams(transformers.AutoModelForCausalLM, plain, packed, inputs, device)


def test_a_change_of_the_model_is_streamed(device, tmp_path, monkeypatch):
    model, plain, packed, inputs = saved(llama, tmp_path)
    init = transformers.LlamaForCausalLM.from_pretrained.__func__

    def changed(cls, *given, **options):
        made = init(cls, *given, **options)
        with torch.no_grad():
            made.lm_head.weight[3] += 1
            made.model.layers[1].mlp.up_proj.weight.view(-1)[:8] = 7  # in the first page
        made.kept = [made.model.layers[2].mlp.up_proj.weight]
        return made

    monkeypatch.setattr(transformers.LlamaForCausalLM, "from_pretrained", classmethod(changed))
    loaded = load(transformers.LlamaForCausalLM, plain)
    with torch.no_grad():
        want = loaded(**inputs).logits
        with st.from_pretrained(packed, transformers.LlamaForCausalLM, device, budget=size_of(model) // 3) as streamed:
            made = streamed.module(**inputs).logits
            read = [place.tensor for weight in streamed._weights if weight.unread for place in weight.places]
            layers = streamed.module.model.layers
            assert not any(one is streamed.module.lm_head.weight for one in read)
            assert not any(one is layers[1].mlp.up_proj.weight for one in read)
            assert any(one is layers[2].mlp.up_proj.weight for one in read)
        torch.testing.assert_close(made, want)
        assert torch.equal(streamed.module(**inputs).logits, made)
        kept = streamed.module.kept[0]
        assert kept is streamed.module.model.layers[2].mlp.up_proj.weight
        assert torch.equal(kept, model.model.layers[2].mlp.up_proj.weight)
        assert torch.equal(streamed.module(**inputs).logits, want)
    with (
        torch.no_grad(),
        st.stream(streamed.module, device, budget=size_of(model) // 3, mapped=True),
    ):
        assert torch.equal(streamed.module(**inputs).logits, want)


def test_tensors_that_are_made_of_others_have_their_contents(device, tmp_path):
    _, plain, packed, inputs = saved(experts, tmp_path)
    streams(transformers.Qwen3MoeForCausalLM, plain, packed, inputs, device)


def test_another_type_a_subfolder_and_what_else_is_there(device, tmp_path):
    _, plain, packed, inputs = saved(llama, tmp_path)
    for folder in (plain, packed):
        inside = folder.with_name(f"outer-{folder.name}") / "inside"
        inside.parent.mkdir()
        folder.rename(inside)
        (inside.parent / "broken.safetensors").write_bytes(b"no header")
    streams(
        transformers.LlamaForCausalLM,
        tmp_path / "outer-plain",
        tmp_path / "outer-packed",
        inputs,
        device,
        subfolder="inside",
        dtype=torch.float32,
    )


def test_a_model_of_diffusers_and_another_format(device, tmp_path):
    _, plain, packed, inputs = saved(flux, tmp_path, dtype=torch.float32)
    streams(diffusers.FluxTransformer2DModel, plain, packed, inputs, device)


@pytest.mark.parametrize("parts", [None, ["vqvae"]])
def test_a_pipeline_from_its_folder(tmp_path, parts):
    torch.manual_seed(1)
    unet = diffusers.UNet2DModel(
        in_channels=4,
        out_channels=4,
        block_out_channels=(64, 128),
        norm_num_groups=8,
        layers_per_block=1,
        sample_size=8,
        down_block_types=("DownBlock2D", "AttnDownBlock2D"),
        up_block_types=("AttnUpBlock2D", "UpBlock2D"),
    )
    vae = diffusers.VQModel(block_out_channels=(64,), latent_channels=4, norm_num_groups=8, num_vq_embeddings=64)
    pipe = diffusers.LDMPipeline(vqvae=vae, unet=unet, scheduler=diffusers.DDIMScheduler())
    plain, packed = tmp_path / "plain", tmp_path / "packed"
    pipe.save_pretrained(plain)
    shutil.copytree(plain, packed)
    for file in plain.glob("*/*.safetensors"):
        to = packed / file.relative_to(plain)
        to.unlink()
        subprocess.run([COMMAND, "pack", file, "-o", to], check=True, capture_output=True)

    def image(pipe):
        pipe.set_progress_bar_config(disable=True)
        generator = torch.Generator().manual_seed(0)
        return torch.from_numpy(pipe(generator=generator, num_inference_steps=2, output_type="np").images)

    want = image(diffusers.DiffusionPipeline.from_pretrained(plain))
    with st.from_pretrained(packed, diffusers.DiffusionPipeline, "host", parts=parts) as streamed:
        for name, part in streamed.parts.items():
            assert any(weight.unread is not None for weight in part._weights), name
        assert set(streamed.parts) == set(parts or ["vqvae", "unet"])
        assert torch.equal(image(streamed.pipe), want)
        assert streamed.pipe.name_or_path == str(packed)
        assert streamed.pipe.unet.config["_name_or_path"] == str(packed / "unet")


def test_a_part_of_a_model_and_outside_tensors(device, tmp_path):
    model, plain, packed, inputs = saved(llama, tmp_path)
    loaded = load(transformers.LlamaModel, plain)
    with torch.no_grad():
        want = loaded(**inputs).last_hidden_state
        with st.from_pretrained(
            packed, transformers.LlamaModel, device, budget=size_of(model) // 2, outside="layers.1.*"
        ) as streamed:
            made = streamed.module(**inputs).last_hidden_state
            assert torch.equal(
                streamed.module.state_dict()["layers.1.mlp.up_proj.weight"], model.model.layers[1].mlp.up_proj.weight
            )
        torch.testing.assert_close(made, want)
        assert torch.equal(streamed.module(**inputs).last_hidden_state, made)


def test_packed_weights_are_trained(device, tmp_path):
    model, plain, packed, inputs = saved(llama, tmp_path, dtype=torch.float32)
    results = []
    for folder in (plain, packed):
        with st.from_pretrained(
            folder,
            transformers.LlamaForCausalLM,
            device,
            budget=size_of(model) // 2,
            optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.1),
        ) as streamed:
            for _ in range(2):
                streamed.module(**inputs, labels=inputs["input_ids"]).loss.backward()
            results.append({name: one.clone() for name, one in streamed.module.state_dict().items()})
    for name, tensor in results[0].items():
        assert torch.equal(results[1][name], tensor), name
    assert not torch.equal(results[0]["lm_head.weight"], model.lm_head.weight)


def test_a_damaged_file_is_named(device, tmp_path, monkeypatch):
    _, _, packed, _ = saved(llama, tmp_path, shard="1GB")
    file = packed / "model.safetensors"
    whole = file.read_bytes()
    damaged = bytearray(whole)
    damaged[len(damaged) // 2] ^= 1
    file.write_bytes(damaged)
    with pytest.raises(sh.Error, match=r"weight in .*model\.safetensors: .*packed tensor"):
        st.from_pretrained(packed, transformers.LlamaForCausalLM, device)
    file.write_bytes(whole[:-5000])
    with pytest.raises(SafetensorError, match=r"model\.safetensors: tensor .*, but the file holds .*: truncated"):
        st.from_pretrained(packed, transformers.LlamaForCausalLM, device)
    file.write_bytes(whole)

    def full(*given):
        raise OSError(errno.ENOSPC, "there is no room")

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(OSError, match="name another folder in TMPDIR"):
        st.from_pretrained(packed, transformers.LlamaForCausalLM, device)


def test_no_links_remain(device, tmp_path, monkeypatch):
    _, _, packed, _ = saved(llama, tmp_path)
    monkeypatch.setenv("TMPDIR", str(tmp_path / "links"))
    monkeypatch.setattr("tempfile.tempdir", None)
    (tmp_path / "links").mkdir()
    with st.from_pretrained(packed, transformers.LlamaForCausalLM, device):
        assert not list((tmp_path / "links").iterdir())
    (packed / "config.json").write_text("{")  # without the file a model of 7B would be made
    with pytest.raises((OSError, RuntimeError, ValueError)):
        st.from_pretrained(packed, transformers.LlamaForCausalLM, device)
    assert not list((tmp_path / "links").iterdir())
    assert sorted(one.name for one in packed.iterdir()) and pathlib.Path(packed).exists()
