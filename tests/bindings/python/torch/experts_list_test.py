"""Experts that are modules of a list: only those that are called are loaded, into slots that all such experts share."""

import diffusers
import pytest
import torch
import transformers
import zoo
from torch import nn

import libstagehand.torch as st

COUNT, USED, WIDTH = 16, 2, 64


class Expert(nn.Module):
    def __init__(self):
        super().__init__()
        self.gate, self.up = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(WIDTH, 2 * WIDTH)
        self.down = nn.Linear(2 * WIDTH, WIDTH, bias=False)

    def forward(self, x):
        return self.down(nn.functional.silu(self.gate(x)) * self.up(x))


class Mixture(nn.Module):
    """As users write it: it picks its experts by number."""

    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.router = nn.Linear(WIDTH, COUNT)
        self.experts = nn.ModuleList(Expert() for _ in range(COUNT))
        self.shared_experts = Expert()

    def forward(self, x):
        normal = self.norm(x)
        weights, chosen = self.router(normal).softmax(-1).topk(USED)
        out = torch.zeros_like(x)
        for number in chosen.unique().tolist():
            token, place = torch.where(chosen == number)
            out.index_add_(0, token, self.experts[number](normal[token]) * weights[token, place, None])
        return x + out + self.shared_experts(normal)


def mixtures(layers=10):
    """A layer of them is small enough for a block."""
    torch.manual_seed(0)
    return nn.Sequential(*(Mixture() for _ in range(layers))).requires_grad_(False)


def tokens(count, seed=1):
    return torch.randn(count, 1, WIDTH, generator=torch.Generator().manual_seed(seed))


def bytes_of(module):
    return sum(parameter.nbytes for parameter in module.parameters())


@torch.no_grad()
def outputs(model, inputs):
    return torch.stack([model(x) for x in inputs])


@pytest.mark.parametrize("budget", ["20%", "50%", "80%"])
def test_only_experts_that_are_called_are_loaded(budget):
    model, inputs = mixtures(), tokens(30)
    plain = outputs(model, inputs)
    called = []
    for layer in model:
        for expert in layer.experts:
            expert.register_forward_hook(lambda module, args, output: called.append(module))
    with st.stream(model, "host", budget=budget) as streamed:
        assert torch.equal(outputs(model, inputs[:10]), plain[:10])
        called.clear()
        before = streamed.stats().bytes_to_device
        assert torch.equal(outputs(model, inputs[10:]), plain[10:])
        loaded = streamed.stats().bytes_to_device - before
    others = bytes_of(model) - sum(bytes_of(layer.experts) for layer in model)
    most = sum(map(bytes_of, called)) + 20 * others * (budget == "20%")
    assert loaded <= most
    assert len(called) == 20 * len(model) * USED


def test_a_model_that_does_not_change_its_experts_loads_nothing():
    model, inputs = mixtures(), tokens(1)
    with st.stream(model, "host", budget="60%") as streamed:
        for _ in range(3):
            outputs(model, inputs)
        before = streamed.stats().bytes_to_device
        for _ in range(5):
            outputs(model, inputs)
        assert streamed.stats().bytes_to_device == before


def test_calls_with_gradients_between_calls_without():
    """These hold an expert as a block, and have hooks on the modules in it, which other calls then need not."""
    model, x = mixtures(), tokens(1)[0].requires_grad_()
    inputs = tokens(10, 2)
    plain = outputs(model, inputs)
    model(x).sum().backward()
    want, x.grad = x.grad, None
    with st.stream(model, "host", budget="60%") as streamed:

        def acquires():
            before = streamed.stats().acquires
            assert torch.equal(outputs(model, inputs), plain)
            return streamed.stats().acquires - before

        usual = acquires()
        model(x).sum().backward()
        assert torch.equal(x.grad, want)
        assert acquires() == usual


def test_adapters_of_experts():
    peft = pytest.importorskip("peft")

    def adapted():
        torch.manual_seed(3)
        names = r".*experts\.\d+\.(up|down)"
        return peft.get_peft_model(mixtures(4), peft.LoraConfig(r=2, target_modules=names, init_lora_weights=False))

    def trained(model):
        adapters = [parameter for parameter in model.parameters() if parameter.requires_grad]
        optimizer, found = torch.optim.AdamW(adapters, 1e-2), []
        for x in tokens(3):
            model(x).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
            found.append(outputs(model, tokens(3)))
        return found + [adapter.detach().clone() for adapter in adapters]

    want, model = trained(adapted()), adapted()
    with st.stream(model, "host", budget="60%"):
        found = trained(model)
    assert all(map(torch.equal, found, want))


def test_experts_share_the_slots_of_one_pool():
    """A block has an address of its own, and an expert has that of its slot."""
    model, called, addresses = mixtures(), set(), set()

    def note(module, args):
        called.add(module)
        addresses.add(module.down.weight.data_ptr())

    for layer in model:
        for expert in layer.experts:
            expert.register_forward_pre_hook(note)
    with st.stream(model, "host", budget="20%"):
        outputs(model, tokens(10))
    assert len(addresses) < len(called)


def test_a_new_source_is_loaded():
    model, inputs = mixtures(), tokens(6)
    changed = {name: tensor * 1.5 for name, tensor in model.state_dict().items()}
    with st.stream(model, "host", budget="50%"):
        outputs(model, inputs)
        model.load_state_dict(changed)
        found = outputs(model, inputs)
    assert torch.equal(found, outputs(model, inputs))
    assert torch.equal(model[0].experts[3].up.weight, changed["0.experts.3.up.weight"])


def test_a_call_that_fails_holds_nothing():
    model, inputs = mixtures(), tokens(5)
    plain, want = outputs(model, inputs), model[1].experts[3].up.weight.clone()
    with st.stream(model, "host", budget="50%") as streamed:
        with pytest.raises(RuntimeError), torch.no_grad():
            model[1].experts[3](torch.zeros(1, WIDTH + 1))
        assert torch.equal(model[1].experts[3].up.weight.cpu(), want)
        assert torch.equal(outputs(model, inputs), plain)
    assert streamed.stats().failed_loads == 0


@pytest.mark.parametrize("make", [lambda ps: torch.optim.SGD(ps, 0.05, 0.9, weight_decay=0.1), torch.optim.AdamW])
def test_experts_that_are_not_called_are_not_trained(make):
    """Without a gradient they make no step, as in plain training."""

    def steps(model, optimizer=None):
        for x in tokens(4):
            model(x).square().mean().backward()
            if optimizer is not None:
                optimizer.step()
                optimizer.zero_grad()
        return {name: tensor.clone() for name, tensor in model.state_dict().items()}

    plain, model = mixtures().requires_grad_(True), mixtures().requires_grad_(True)
    want = steps(plain, make(plain.parameters()))
    with st.stream(model, "host", budget="60%", optimizer=make):
        steps(model)
    for name, tensor in model.state_dict().items():
        torch.testing.assert_close(tensor, want[name], rtol=0, atol=0, msg=name)


def test_the_image_model_of_hidream():
    torch.manual_seed(0)
    model = diffusers.HiDreamImageTransformer2DModel(
        patch_size=2, in_channels=4, out_channels=4, num_layers=1, num_single_layers=2, attention_head_dim=16,
        num_attention_heads=4, caption_channels=[32, 32], text_emb_dim=32, num_routed_experts=COUNT,
        num_activated_experts=USED, axes_dims_rope=(4, 6, 6), max_resolution=(8, 8), llama_layers=[0, 1, 2],
        force_inference_output=True,
    ).eval()  # fmt: skip
    inputs = {"hidden_states": torch.randn(1, 4, 4, 4), "timesteps": torch.tensor([5.0])}
    inputs |= {"encoder_hidden_states_t5": torch.randn(1, 3, 32), "pooled_embeds": torch.randn(1, 32)}
    inputs["encoder_hidden_states_llama3"] = torch.randn(3, 1, 3, 32)
    called = []
    for name, module in model.named_modules():
        if name.rpartition(".")[0].endswith(".experts"):
            module.register_forward_hook(lambda module, args, output: called.append(module))
    with torch.no_grad():
        plain = model(**inputs, return_dict=False)[0]
        assert len(set(called)) < 3 * COUNT
        with st.stream(model, "host", budget="60%") as streamed:
            found = model(**inputs, return_dict=False)[0]
            loaded = streamed.stats().bytes_to_device
    assert torch.equal(found, plain)
    assert loaded < bytes_of(model)


@pytest.mark.parametrize("name", ["SwitchTransformersForConditionalGeneration", "NllbMoeForConditionalGeneration"])
def test_lists_of_transformers(name):
    if name.startswith("Switch"):
        settings = zoo.SWITCH | {"num_experts": COUNT}
    else:
        settings = zoo.SEQUENCES | {"num_experts": COUNT, "encoder_sparse_step": 1, "decoder_sparse_step": 1}
    torch.manual_seed(0)
    config = getattr(transformers, name.replace("ForConditionalGeneration", "Config"))(**settings)
    model = getattr(transformers, name)(config).eval()
    inputs = {"input_ids": torch.arange(4)[None] + 5, "decoder_input_ids": torch.arange(3)[None] + 5}
    with torch.no_grad():
        plain = model(**inputs).logits
        with st.stream(model, "host", budget="50%") as streamed:
            found = model(**inputs).logits
            loaded = streamed.stats().bytes_to_device
    assert torch.equal(found, plain)
    assert loaded < bytes_of(model)
