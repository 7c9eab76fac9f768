"""The smallest budget that an error tells: it works, and less is refused at once with the same number."""

import copy
import re

import pytest
import torch
from models import PAGE, Layer, Net, equal, gradients, loss_of, size_of, with_lora
from torch import nn

import libstagehand as sh
import libstagehand.torch as st

transformers = pytest.importorskip("transformers")

_SMALL = {"vocab_size": 256, "hidden_size": 64, "num_hidden_layers": 4, "num_attention_heads": 4}
_VISION = {"hidden_size": 64, "intermediate_size": 160, "num_hidden_layers": 4, "num_attention_heads": 4}
_IMAGE = {"image_size": 32, "patch_size": 8}
_HALF = {"decoder_" + key: value for key, value in {"layers": 3, "attention_heads": 4, "ffn_dim": 160}.items()}
_OTHER_HALF = {key.replace("decoder", "encoder"): value for key, value in _HALF.items()}


def text():
    return {"input_ids": torch.randint(3, 200, (2, 9))}


def image(size=32):
    return {"pixel_values": torch.randn(2, 3, size, size)}


def both():
    return {**text(), "decoder_input_ids": torch.randint(3, 200, (2, 5))}


def clip():
    parts = {
        "text_config": {**_SMALL, "intermediate_size": 160, "max_position_embeddings": 32, "eos_token_id": 255},
        "vision_config": {**_VISION, **_IMAGE},
    }
    return transformers.CLIPModel(transformers.CLIPConfig(**parts, projection_dim=32))


def of(model, config, inputs, **options):
    def make():
        return getattr(transformers, model)(getattr(transformers, config)(**options))

    return pytest.param(make, inputs, id=model)


class Own(nn.Module):
    """Layers, and what the model has for itself, which it reads between them."""

    def __init__(self, inner=Net, width=64):
        super().__init__()
        self.table = nn.Parameter(torch.randn(300, width))
        self.net = inner()

    def forward(self, tokens, hidden=None):
        out = self.net(tokens, hidden)
        return {**out, "hidden": out["hidden"] + self.table[tokens]}


def tied():
    net = Net()
    net.head.weight = net.embed.weight
    return net


CASES = [
    of("BertForMaskedLM", "BertConfig", text, **_SMALL, intermediate_size=160),
    of("BertModel", "BertConfig", text, **_SMALL, intermediate_size=160),
    pytest.param(clip, lambda: {**text(), **image()}, id="CLIP"),
    of("ConvNextForImageClassification", "ConvNextConfig", image, hidden_sizes=[16, 32, 48, 64], depths=[1, 1, 3, 1]),
    of("LlamaForCausalLM", "LlamaConfig", text, **_SMALL, intermediate_size=160),
    of("LlamaForCausalLM", "LlamaConfig", text, **_SMALL, intermediate_size=160, tie_word_embeddings=True),
    of("T5ForConditionalGeneration", "T5Config", both, vocab_size=256, d_model=64, d_kv=16, d_ff=160, num_layers=3),
    of("GPT2LMHeadModel", "GPT2Config", text, vocab_size=256, n_positions=64, n_embd=64, n_layer=4, n_head=4),
    of("ViTForImageClassification", "ViTConfig", image, **_VISION, **_IMAGE),
    of("Dinov2Model", "Dinov2Config", image, **_VISION, **_IMAGE),
    of("BeitModel", "BeitConfig", image, **_VISION, **_IMAGE),
    of(
        "DebertaV2ForMaskedLM",
        "DebertaV2Config",
        text,
        **_SMALL,
        intermediate_size=160,
        relative_attention=True,
        position_buckets=8,
        pos_att_type=["p2c", "c2p"],
    ),
    of("BartForConditionalGeneration", "BartConfig", both, vocab_size=256, d_model=64, **_HALF, **_OTHER_HALF),
    of("AlbertForMaskedLM", "AlbertConfig", text, **_SMALL, embedding_size=32, intermediate_size=160),
    of("ElectraForMaskedLM", "ElectraConfig", text, **_SMALL, embedding_size=32, intermediate_size=160),
    of(
        "MixtralForCausalLM",
        "MixtralConfig",
        text,
        **_SMALL,
        intermediate_size=64,
        num_key_value_heads=2,
        num_local_experts=4,
    ),
    of("MambaForCausalLM", "MambaConfig", text, vocab_size=256, hidden_size=64, state_size=8, num_hidden_layers=4),
    of("OPTForCausalLM", "OPTConfig", text, **_SMALL, ffn_dim=160, word_embed_proj_dim=32, pad_token_id=1),
    pytest.param(Net, lambda: {"tokens": torch.randint(0, 50, (3, 7))}, id="Net"),
    pytest.param(Own, lambda: {"tokens": torch.randint(0, 50, (3, 7))}, id="own"),
    pytest.param(lambda: Own(lambda: Own()), lambda: {"tokens": torch.randint(0, 50, (3, 7))}, id="own in own"),
    pytest.param(lambda: Own(tied), lambda: {"tokens": torch.randint(0, 50, (3, 7))}, id="own and tied"),
]


def tensors(out):
    if isinstance(out, torch.Tensor):
        return [out]
    values = out.values() if hasattr(out, "values") else out if isinstance(out, (tuple, list)) else []
    return [tensor for value in values for tensor in tensors(value)]


def told(error):
    """The bytes of the smallest budget that a message tells."""
    found = re.search(r"the model needs at least (?:[^()]*?\()?(\d+) bytes", str(error))
    assert found, f"no number is told: {error}"
    return int(found[1])


def on_a_device(model, budget, run):
    with sh.Device("host", page_bytes=PAGE, backend_options="poison=1", budget_bytes=budget) as device:
        with st.stream(model, device):
            return run()


def by_its_name(model, budget, run):
    with st.stream(model, "host", budget=budget):
        return run()


@pytest.mark.parametrize("way", [on_a_device, by_its_name])
@pytest.mark.parametrize("make, inputs", CASES)
def test_it_works_and_less_is_refused(make, inputs, way):
    model = make().eval().requires_grad_(False)
    inputs = inputs()
    want = tensors(model(**inputs))
    assert want

    def run():
        for _ in range(3):
            assert all(torch.equal(got, one) for got, one in zip(tensors(model(**inputs)), want, strict=True))

    numbers = set()
    for begin in (PAGE, 3 * PAGE, size_of(model) // 50, size_of(model) // 20):
        try:
            way(model, max(begin, PAGE), run)
        except sh.BudgetError as error:
            numbers.add(told(error))
    assert len(numbers) == 1, numbers
    number = numbers.pop()
    way(model, number, run)
    with pytest.raises(sh.BudgetError) as less:
        way(model, number - 1, run)
    assert told(less.value) == number


class Wide(nn.Module):
    """What the model has for itself, and layers, of sizes that change the pages, the division or both."""

    def __init__(self, width, layers, own, is_tied):
        super().__init__()
        self.table = nn.Parameter(torch.randn(own, width))
        self.embed = nn.Embedding(50 + own // 2, width)
        self.layers = nn.ModuleList(Layer(width) for _ in range(layers))
        self.head = nn.Linear(width, 50 + own // 2)
        if is_tied:
            self.head.weight = self.embed.weight

    def forward(self, tokens):
        x = self.embed(tokens) + self.table[tokens]
        for layer in self.layers:
            x = layer(x)
        return self.head(x)


@pytest.mark.parametrize("way", [on_a_device, by_its_name])
def test_beside_blocks_that_share_pages(way, tokens):
    """More of them do so with a larger budget."""
    model = Own(lambda: Net(16, 30), 16).requires_grad_(False)
    model.table = nn.Parameter(torch.randn(2000, 16), requires_grad=False)
    want = model(tokens)

    def run():
        for _ in range(3):
            assert equal(tensors(model(tokens)), tensors(want))

    with pytest.raises(sh.BudgetError) as tiny:
        way(model, PAGE, run)
    way(model, told(tiny.value), run)


# A budget decides the size of the pages, and of the blocks.
@pytest.mark.parametrize("shape", [(200, 3, 2000, True), (700, 3, 2000, False), (320, 6, 60, True)])
def test_it_is_the_same_at_any_smaller_budget(shape, tokens):
    model = Wide(*shape).requires_grad_(False)
    want = model(tokens)

    def run():
        for _ in range(3):
            assert torch.equal(model(tokens), want)

    with pytest.raises(sh.BudgetError) as tiny:
        by_its_name(model, PAGE, run)
    number = told(tiny.value)
    for budget in range(size_of(model) // 40, number, size_of(model) // 40):
        with pytest.raises(sh.BudgetError) as small:
            by_its_name(model, budget, run)
        assert told(small.value) == number
    for budget in range(number, size_of(model) * 2 // 3, size_of(model) // 20):
        by_its_name(model, budget, run)


def told_of_all(error):
    found = re.search(r"all models of the device together need [^()]*\((\d+) bytes", str(error))
    return int(found[1]) if found else told(error)


@pytest.mark.parametrize("kinds", [(Own, Own), (Net, lambda: Own(tied)), (lambda: Own(width=64), lambda: Net(128))])
def test_of_two_models(kinds, tokens):
    models = [kind().requires_grad_(False) for kind in kinds]
    want = [tensors(model(tokens)) for model in models]

    def run(budget):
        with sh.Device("host", page_bytes=PAGE, backend_options="poison=1", budget_bytes=budget) as device:
            with st.stream(models[0], device), st.stream(models[1], device):
                for _ in range(3):
                    for model, one in zip(models, want):
                        assert equal(tensors(model(tokens)), one)

    budget, numbers = PAGE, []
    while len(numbers) < 3:
        try:
            run(budget)
            break
        except sh.BudgetError as error:
            budget = told_of_all(error)
            numbers.append(budget)
    # Each model is told to need more than there is. The memory of the one that is idle is the other's.
    assert 1 <= len(numbers) <= 2 and numbers == sorted(set(numbers))
    with pytest.raises(sh.BudgetError) as less:
        run(budget - 1)
    assert told_of_all(less.value) == budget
    for part in (0.33, 0.5, 0.7):
        run(max(budget, int(sum(map(size_of, models)) * part)))


@pytest.mark.parametrize("kind", [Net, Own, lambda: Own(tied)])
def test_with_gradients(kind, tokens):
    net = kind()
    adapted = net.net if isinstance(net, Own) else net
    net.requires_grad_(False)
    with_lora(adapted)
    want = gradients(net, tokens)

    def run():
        for _ in range(3):
            assert equal(gradients(net, tokens), want)

    with pytest.raises(sh.BudgetError) as tiny:
        on_a_device(net, PAGE, run)
    on_a_device(net, told(tiny.value), run)


@pytest.mark.parametrize("kind", [Net, Own, lambda: Own(tied)])
def test_with_training(kind, tokens):
    net = kind()
    other = copy.deepcopy(net)

    def resident():
        optimizer = torch.optim.SGD(other.parameters(), lr=0.1)
        for _ in range(3):
            loss_of(other(tokens)).backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)

    def streamed(budget):
        with sh.Device("host", page_bytes=PAGE, backend_options="poison=1", budget_bytes=budget) as device:
            with st.stream(net, device, optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.1)):
                for _ in range(3):
                    loss_of(net(tokens)).backward()

    resident()
    with pytest.raises(sh.BudgetError) as tiny:
        streamed(PAGE)
    streamed(told(tiny.value))
    assert equal(list(net.parameters()), list(other.parameters()))
