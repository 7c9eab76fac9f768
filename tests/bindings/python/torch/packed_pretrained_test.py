"""Models of transformers and diffusers whose files `stagehand pack` has packed."""

import errno
import os
import pathlib
import shutil
import subprocess
from functools import partial

import pytest
import torch
import zoo
from models import host, size_of
from zoo import diffusers, first, transformers

import libstagehand as sh
import libstagehand.torch as st

SafetensorError = pytest.importorskip("safetensors").SafetensorError
COMMAND = os.environ.get("STAGEHAND_COMMAND", "")
LARGE = {"hidden_size": 256, "intermediate_size": 512, "vocab_size": 512}
LLAMA = transformers.LlamaForCausalLM

pytestmark = pytest.mark.skipif(not COMMAND, reason="STAGEHAND_COMMAND names no command that packs")
llama = partial(zoo.made, "LlamaForCausalLM", **LARGE)
experts = partial(zoo.made, "Qwen3MoeForCausalLM", 2, **LARGE | {"moe_intermediate_size": 256, "head_dim": 64})
HEADS = {"attention_head_dim": 64, "num_attention_heads": 4, "axes_dims_rope": [16, 24, 24]}
flux = partial(zoo.flux_transformer, 64, num_single_layers=2, **HEADS)


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


def streams(cls, plain, packed, inputs, device, **options):
    """Streams the packed folder, and compares with the model after streaming, and with the plain folder. The CPU's
    kernels round by where weights lie, which differs between the files of both folders. Returns the streamed model,
    which is closed.
    """
    loaded = cls.from_pretrained(plain, **options)
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
    with host(page_bytes=64 << 10) as device:
        yield device


@pytest.mark.parametrize("tied", [False, True])
def test_a_packed_folder_streams_packed(device, tmp_path, tied):
    model, plain, packed, inputs = saved(partial(llama, tie_word_embeddings=tied), tmp_path)
    with st.from_pretrained(packed, LLAMA, device, budget=size_of(model) // 3) as streamed:
        sizes = [weight.bytes for weight in streamed._weights if weight.unread is not None]
        assert sizes and sorted(sizes) == sorted(one.bytes for one in streamed._weights if one.bytes >= 64 << 10)
        for inside in (streamed.module, streamed.module.model):
            assert inside.name_or_path == inside.config._name_or_path == str(packed)
    streams(transformers.AutoModelForCausalLM, plain, packed, inputs, device)


def test_a_change_of_the_model_is_streamed(device, tmp_path, monkeypatch):
    model, plain, packed, inputs = saved(llama, tmp_path)
    init = LLAMA.from_pretrained.__func__

    def changed(cls, *given, **options):
        made = init(cls, *given, **options)
        with torch.no_grad():
            made.lm_head.weight[3] += 1
            made.model.layers[1].mlp.up_proj.weight.view(-1)[:8] = 7  # in the first page
        made.kept = [made.model.layers[2].mlp.up_proj.weight]
        return made

    monkeypatch.setattr(LLAMA, "from_pretrained", classmethod(changed))
    loaded = LLAMA.from_pretrained(plain)
    with torch.no_grad():
        want = loaded(**inputs).logits
        with st.from_pretrained(packed, LLAMA, device, budget=size_of(model) // 3) as streamed:
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
    outer = [tmp_path / f"outer-{kind}" for kind in ("plain", "packed")]
    streams(LLAMA, *outer, inputs, device, subfolder="inside", dtype=torch.float32)


def test_a_model_of_diffusers_and_another_format(device, tmp_path):
    _, plain, packed, inputs = saved(flux, tmp_path, dtype=torch.float32)
    streams(diffusers.FluxTransformer2DModel, plain, packed, inputs, device)


@pytest.mark.parametrize("parts", [None, ["vqvae"]])
def test_a_pipeline_from_its_folder(tmp_path, parts):
    torch.manual_seed(1)
    unet = zoo.unet(in_channels=4, out_channels=4, block_out_channels=(64, 128), layers_per_block=1)
    vae = diffusers.VQModel(block_out_channels=(64,), latent_channels=4, norm_num_groups=8, num_vq_embeddings=64)
    pipe = diffusers.LDMPipeline(vqvae=vae, unet=unet, scheduler=diffusers.DDIMScheduler())
    plain, packed = tmp_path / "plain", tmp_path / "packed"
    pipe.save_pretrained(plain)
    shutil.copytree(plain, packed)
    for file in plain.glob("*/*.safetensors"):
        to = packed / file.relative_to(plain)
        to.unlink()
        subprocess.run([COMMAND, "pack", file, "-o", to], check=True, capture_output=True)

    image = zoo.image_of
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
    loaded = transformers.LlamaModel.from_pretrained(plain)
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


def test_a_damaged_file_is_named(device, tmp_path, monkeypatch):
    _, _, packed, _ = saved(llama, tmp_path, shard="1GB")
    file = packed / "model.safetensors"
    whole = file.read_bytes()
    damaged = bytearray(whole)
    damaged[len(damaged) // 2] ^= 1
    file.write_bytes(damaged)
    with pytest.raises(sh.Error, match=r"weight in .*model\.safetensors: .*packed tensor"):
        st.from_pretrained(packed, LLAMA, device)
    file.write_bytes(whole[:-5000])
    with pytest.raises(SafetensorError, match=r"model\.safetensors: tensor .*, but the file holds .*: truncated"):
        st.from_pretrained(packed, LLAMA, device)
    file.write_bytes(whole)

    def full(*given):
        raise OSError(errno.ENOSPC, "there is no room")

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(OSError, match="name another folder in TMPDIR"):
        st.from_pretrained(packed, LLAMA, device)


def test_no_links_remain(device, tmp_path, monkeypatch):
    _, _, packed, _ = saved(llama, tmp_path)
    monkeypatch.setenv("TMPDIR", str(tmp_path / "links"))
    monkeypatch.setattr("tempfile.tempdir", None)
    (tmp_path / "links").mkdir()
    with st.from_pretrained(packed, LLAMA, device):
        assert not list((tmp_path / "links").iterdir())
    (packed / "config.json").write_text("{")  # without the file a model of 7B would be made
    with pytest.raises((OSError, RuntimeError, ValueError)):
        st.from_pretrained(packed, LLAMA, device)
    assert not list((tmp_path / "links").iterdir())
    assert sorted(one.name for one in packed.iterdir()) and pathlib.Path(packed).exists()
