"""Mixtures whose files have each expert by itself: from_pretrained() makes no stacks of them in host memory."""

import logging
import threading

import pytest
import torch
import transformers
from experts_test import mixture, tokens_of
from models import sgd
from safetensors.torch import load_file, save_file

import libstagehand.torch as st
from libstagehand.torch._stacks import Stacks, stacking

NAMES = ["Qwen3MoeForCausalLM", "MixtralForCausalLM", "OlmoeForCausalLM", "DeepseekV3ForCausalLM"]


def saved(tmp_path, name="Qwen3MoeForCausalLM", shard="200KB"):
    """Saves a model in several files. Returns the model as transformers loads it."""
    mixture(name).to(torch.bfloat16).save_pretrained(tmp_path, max_shard_size=shard)
    return load(tmp_path, name)


def load(folder, name="Qwen3MoeForCausalLM"):
    return getattr(transformers, name).from_pretrained(folder, experts_implementation="grouped_mm").eval()


def streamed_from(folder, name="Qwen3MoeForCausalLM", budget="60%", **options):
    cls = getattr(transformers, name)
    return st.from_pretrained(folder, cls, "host", budget=budget, experts_implementation="grouped_mm", **options)


def stacks(model):
    return {name: one for name, one in model.named_parameters() if name.endswith(("gate_up_proj", "down_proj"))}


def bytes_in_memory(streamed):
    """Bytes of stacks in host memory: those that were made there, and those that somebody has asked for."""
    weights = [place.weight for place in streamed._places if place.weight.host is not None]
    names = {place.name for place in streamed._places if place.name in stacks(streamed.module)}
    assert names
    return sum(
        weight.bytes
        for weight in weights
        if any(place.name in names for place in weight.places) and (weight.unread is None or weight.unread._read)
    )


@pytest.mark.parametrize("name", NAMES)
def test_experts_are_streamed_from_their_files(name, tmp_path, caplog):
    loaded = saved(tmp_path, name)
    plain, _ = tokens_of(loaded, 30)
    prompt = torch.randint(5, 99, (2, 30))
    caplog.set_level(logging.INFO, "libstagehand.torch")
    with torch.no_grad(), streamed_from(tmp_path, name) as streamed:
        model = streamed.module
        found, cache = tokens_of(model, 10)
        before = streamed.stats().bytes_to_device
        rest, _ = tokens_of(model, 20, 10, cache)
        taken = streamed.stats().bytes_to_device - before
        assert torch.equal(torch.cat([found, rest]), plain)
        assert torch.equal(model(prompt).logits, loaded(prompt).logits)
        assert bytes_in_memory(streamed) == 0
    experts = sum(one.nbytes for one in stacks(loaded).values())
    assert taken < 20 * experts / 4  # a token uses two of 16 experts
    assert not [one for one in caplog.records if "host memory" in one.getMessage()]


def test_who_asks_for_a_stack_gets_its_contents(tmp_path):
    loaded = saved(tmp_path)
    with streamed_from(tmp_path) as streamed:
        model = streamed.module
        tokens_of(model, 3)
        name, want = next(iter(stacks(loaded).items()))
        assert torch.equal(model.get_parameter(name)[3].cpu(), want[3])
        assert bytes_in_memory(streamed) == want.nbytes
        state = model.state_dict()
        assert all(torch.equal(state[name], tensor) for name, tensor in loaded.state_dict().items())
        assert torch.equal(tokens_of(model, 3)[0], tokens_of(loaded, 3)[0])


def test_stacks_are_read_after_streaming_when_somebody_asks_for_them(tmp_path):
    loaded = saved(tmp_path)
    with streamed_from(tmp_path) as streamed:
        tokens_of(streamed.module, 3)
        unread = {place.name: place.weight.unread for place in streamed._places if place.weight.unread}
    model = streamed.module
    assert set(unread) == set(stacks(loaded))
    for name, one in model.named_parameters():
        assert one.shape == loaded.get_parameter(name).shape and one.device.type == "cpu"
    assert not any(stack._read for stack in unread.values())
    for name in list(unread)[:1]:
        assert torch.equal(model.get_parameter(name)[1], loaded.get_parameter(name)[1])
        assert sum(stack._read for stack in unread.values()) == 1
    assert torch.equal(tokens_of(model, 3)[0], tokens_of(loaded, 3)[0])
    assert all(type(one) is torch.nn.Parameter for one in model.parameters())
    model.save_pretrained(tmp_path / "again")
    state = load(tmp_path / "again").state_dict()
    assert all(torch.equal(state[name], tensor) for name, tensor in loaded.state_dict().items())


def test_a_model_is_streamed_again(tmp_path):
    loaded = saved(tmp_path)
    with streamed_from(tmp_path) as streamed:
        tokens_of(streamed.module, 2)
    with st.stream(streamed.module, "host", budget="60%"):
        assert torch.equal(tokens_of(streamed.module, 3)[0], tokens_of(loaded, 3)[0])


def test_gradients_through_frozen_experts(tmp_path):
    loaded = saved(tmp_path).requires_grad_(False)
    inputs = torch.randn(1, 6, 64, dtype=torch.bfloat16, requires_grad=True)
    loaded(inputs_embeds=inputs).logits.sum().backward()
    want, inputs.grad = inputs.grad, None
    with streamed_from(tmp_path) as streamed:
        streamed.module(inputs_embeds=inputs).logits.sum().backward()
        assert bytes_in_memory(streamed) == 0
    assert torch.equal(inputs.grad, want)


def test_training_equals_that_of_the_loaded_model(tmp_path):
    tokens = torch.randint(5, 99, (2, 8))
    loaded = saved(tmp_path).train()
    optimizer = sgd(loaded.parameters())
    for _ in range(3):
        loaded(input_ids=tokens, labels=tokens).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    with streamed_from(tmp_path, optimizer=sgd) as streamed:
        model = streamed.module.train()
        for _ in range(3):
            model(input_ids=tokens, labels=tokens).loss.backward()
        state = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    left = model.state_dict()
    for name, tensor in loaded.state_dict().items():
        assert torch.equal(state[name], tensor) and torch.equal(left[name], tensor)


def change(folder, edit):
    """Has one of a folder's files have other tensors."""
    (file,) = folder.glob("*.safetensors")
    tensors = load_file(file)
    edit(tensors)
    copies = {name: tensor.clone() for name, tensor in tensors.items()}
    file.unlink()
    save_file(copies, file, metadata={"format": "pt"})


@pytest.mark.parametrize("what", ["missing", "of another shape"])
def test_an_error_is_that_of_transformers(what, tmp_path):
    saved(tmp_path, shard="1GB")
    name = "model.layers.0.mlp.experts.2.gate_proj.weight"

    def edit(tensors):
        tensor = tensors.pop(name)
        if what != "missing":
            tensors[name] = tensor[:, :8]

    change(tmp_path, edit)
    with pytest.raises(Exception) as plain:
        load(tmp_path)
    with pytest.raises(type(plain.value)) as found:
        streamed_from(tmp_path)
    assert str(found.value) == str(plain.value)


def test_a_part_of_another_type_is_put_together_in_memory(tmp_path, caplog):
    saved(tmp_path, shard="1GB")
    name = "model.layers.0.mlp.experts.2.down_proj.weight"
    change(tmp_path, lambda tensors: tensors.update({name: tensors[name].float()}))
    loaded = load(tmp_path)
    caplog.set_level(logging.INFO, "libstagehand.torch")
    with streamed_from(tmp_path) as streamed:
        assert torch.equal(tokens_of(streamed.module, 5)[0], tokens_of(loaded, 5)[0])
    (told,) = [one.getMessage() for one in caplog.records if "host memory" in one.getMessage()]
    assert told.endswith("needs: model.layers.0.mlp.experts.down_proj")


def test_another_type_is_put_together_in_memory(tmp_path):
    saved(tmp_path)
    loaded = transformers.Qwen3MoeForCausalLM.from_pretrained(tmp_path, dtype=torch.float32)
    with streamed_from(tmp_path, dtype=torch.float32) as streamed:
        assert torch.equal(tokens_of(streamed.module, 5)[0], tokens_of(loaded, 5)[0])
        assert bytes_in_memory(streamed) == sum(one.nbytes for one in stacks(loaded).values())


def test_threads_load_models_at_the_same_time(tmp_path):
    saved(tmp_path)
    before = transformers.core_model_loading.WeightConverter.convert
    cls, found, models = transformers.Qwen3MoeForCausalLM, [Stacks(), Stacks()], {}
    begun, ended = threading.Event(), threading.Event()

    def overlap():
        with stacking(cls, found[1]):
            begun.set()
            ended.wait()
            models["overlapping"] = load(tmp_path)

    threads = [threading.Thread(target=overlap), threading.Thread(target=lambda: models.update(other=load(tmp_path)))]
    with stacking(cls, found[0]):
        for thread in threads:
            thread.start()
        threads[1].join()
        begun.wait()
    ended.set()
    threads[0].join()
    assert not found[0].entries and not any(one.is_meta for one in models["other"].parameters())
    stacked = {name for name, one in models["overlapping"].named_parameters() if one.is_meta}
    assert stacked == set(found[1].entries) == set(stacks(models["other"]))
    assert transformers.core_model_loading.WeightConverter.convert is before
