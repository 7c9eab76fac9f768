"""The smallest budget that an error tells: it works, and less is refused at once with the same number."""

import copy
import re
from functools import partial

import pytest
import torch
import zoo
from models import PAGE, Layer, Net, equal, gradients, host, loss_of, sgd, size_of, told, with_lora
from torch import nn
from zoo import tensors

import libstagehand as sh
import libstagehand.torch as st


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


TRANSFORMERS = (
    "BertForMaskedLM BertModel CLIPModel ConvNextForImageClassification LlamaForCausalLM T5ForConditionalGeneration "
    "GPT2LMHeadModel ViTForImageClassification Dinov2ForImageClassification BeitModel DebertaV2ForMaskedLM "
    "BartForConditionalGeneration AlbertForMaskedLM ElectraForMaskedLM MixtralForCausalLM MambaForCausalLM "
    "OPTForCausalLM"
)
CASES = {name: partial(zoo.made, name) for name in TRANSFORMERS.split()}
CASES["tied Llama"] = partial(zoo.made, "LlamaForCausalLM", tie_word_embeddings=True)
OWN = {"Net": Net, "own": Own, "own in own": lambda: Own(lambda: Own()), "own and tied": lambda: Own(tied)}
CASES |= {name: lambda make=make: (make(), {"tokens": torch.randint(0, 50, (3, 7))}) for name, make in OWN.items()}


def on_a_device(model, budget, run):
    with host(budget) as device, st.stream(model, device):
        return run()


def by_its_name(model, budget, run):
    with st.stream(model, "host", budget=budget):
        return run()


@pytest.mark.parametrize("way", [on_a_device, by_its_name])
@pytest.mark.parametrize("make", CASES.values(), ids=CASES)
def test_it_works_and_less_is_refused(make, way):
    model, inputs = make()
    model.eval().requires_grad_(False)
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
        with host(budget) as device, st.stream(models[0], device), st.stream(models[1], device):
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
        optimizer = sgd(other.parameters())
        for _ in range(3):
            loss_of(other(tokens)).backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)

    def streamed(budget):
        with host(budget) as device, st.stream(net, device, optimizer=sgd):
            for _ in range(3):
                loss_of(net(tokens)).backward()

    resident()
    with pytest.raises(sh.BudgetError) as tiny:
        streamed(PAGE)
    streamed(told(tiny.value))
    assert equal(list(net.parameters()), list(other.parameters()))
