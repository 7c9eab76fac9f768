"""Guesses of the experts that the next layer uses: right ones are loaded ahead, wrong ones are not, and the results are
those of the plain model.
"""

import pytest
import torch
from experts_test import COUNT, mixture, tokens_of

import libstagehand.torch as st
from libstagehand.torch import _experts

TOKENS = 40


@torch.no_grad()
def steady(name, turned=False):
    """A model whose layers see nearly the same hidden states, so that guesses are right. If they are `turned`, every
    other layer sees their opposite, and guesses are wrong.
    """
    model = mixture(name)
    for key, weight in model.named_parameters():
        if "down_proj" in key or "o_proj" in key:
            weight.mul_(1e-3)
    if turned:
        for layer in model.model.layers[1::2]:
            layer.post_attention_layernorm.weight.neg_()
    return model


def run(model, budget="60%"):
    """The logits of tokens while a model is streamed, how often guesses were right, and what the last tokens took."""
    with st.stream(model, "host", budget=budget) as streamed:
        first, cache = tokens_of(model, TOKENS)
        before = streamed.stats()
        rest, _ = tokens_of(model, TOKENS, TOKENS, cache)
        after, rates = streamed.stats(), streamed.guess_rates()
    taken = {key: getattr(after, key) - getattr(before, key) for key in ("misses", "bytes_to_device")}
    return torch.cat([first, rest]), rates, taken


def run_without(model, monkeypatch):
    with monkeypatch.context() as patched:
        patched.setattr(_experts, "make_guesses", lambda *_: {})
        return run(model)


# The last one has a bias in its router.
@pytest.mark.parametrize("name", ["Qwen3MoeForCausalLM", "MixtralForCausalLM", "GptOssForCausalLM"])
def test_right_guesses_are_loaded_ahead(name, monkeypatch):
    model = steady(name)
    plain, _ = tokens_of(model, 2 * TOKENS)
    _, none, without = run_without(model, monkeypatch)
    found, rates, taken = run(model)
    assert torch.equal(found, plain)
    assert none == {}
    assert len(rates) == 2  # a layer that follows no other one has no guesses
    assert all(rate > 0.9 for layer in rates.values() for rate in layer)
    assert taken["misses"] < 0.7 * without["misses"]
    assert taken["bytes_to_device"] <= 1.2 * without["bytes_to_device"]


def test_wrong_guesses_are_not_loaded(monkeypatch):
    model = steady("Qwen3MoeForCausalLM", turned=True)
    plain, _ = tokens_of(model, 2 * TOKENS)
    _, _, without = run_without(model, monkeypatch)
    found, rates, taken = run(model)
    assert torch.equal(found, plain)
    assert all(rate < 0.3 for layer in rates.values() for rate in layer)
    assert taken == without


def test_guesses_of_several_sequences_at_once():
    model = steady("Qwen3MoeForCausalLM")
    tokens = torch.randint(5, 99, (20, 3, 1))
    with torch.no_grad():
        plain = [model(one).logits for one in tokens]
        with st.stream(model, "host", budget="60%") as streamed:
            assert all(torch.equal(model(one).logits, logits) for one, logits in zip(tokens, plain))
            rates = streamed.guess_rates()
            prompt = torch.randint(5, 99, (1, 2 * COUNT))
            model(prompt)  # of too many tokens for a guess
            assert streamed.guess_rates() == rates
    assert all(rate > 0.9 for layer in rates.values() for rate in layer)
