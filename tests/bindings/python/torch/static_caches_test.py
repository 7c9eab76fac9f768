"""generate() of transformers with a static cache, and torch.compile in the mode that is meant for it: the tokens of the
resident model, at half and a quarter of its bytes and at the smallest budget.
"""

import re

import pytest
import torch
from compile_test import with_compiler
from models import PAGE, Net, size_of
from transformers_test import gpt2, llama

import libstagehand as sh
import libstagehand.torch as st

transformers = pytest.importorskip("transformers")


def gemma():
    """Some of its layers see a window only, and have another kind of static cache."""
    config = transformers.Gemma3TextConfig(
        vocab_size=256,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=8,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=16,
        sliding_window=8,
    )
    return transformers.Gemma3ForCausalLM(config).eval()


def smallest(model):
    with sh.Device("host", page_bytes=PAGE, budget_bytes=PAGE) as device:
        with pytest.raises(sh.BudgetError) as refused, st.stream(model, device):
            model(torch.arange(4)[None])
    return int(re.search(r"the model needs at least (?:[^()]*?\()?(\d+) bytes", str(refused.value))[1])


@pytest.mark.parametrize("make", [llama, gpt2, gemma])
def test_the_tokens_of_the_resident_model(make):
    model = make().requires_grad_(False)
    ids = torch.randint(1, 200, (2, 7))
    static = {"cache_implementation": "static", "max_new_tokens": 12, "do_sample": False, "pad_token_id": 0}
    want = model.generate(ids, **static)
    for budget in (size_of(model) // 2, size_of(model) // 4, smallest(model)):
        with (
            sh.Device("host", page_bytes=PAGE, backend_options="poison=1", budget_bytes=budget) as device,
            st.stream(model, device),
        ):
            for _ in range(2):  # the second call has the cache of the first one
                assert torch.equal(model.generate(ids, **static), want)


@with_compiler
def test_compiled_for_decoding(device, tokens, tmp_path, monkeypatch):
    """On the CPU this mode makes no graphs. The search of the first step would run it without the compiler, whose
    programs may differ from PyTorch's own in the last bit.
    """
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    net = Net(layers=2).requires_grad_(False)
    for layer in net.layers:
        layer.compile(mode="reduce-overhead")
    try:
        with torch.no_grad():
            want = net(tokens)["logits"]
            assert torch.equal(net(tokens)["logits"], want)
            with st.stream(net, device, budget=size_of(net) // 2, blocks="layers.*", debug=False):
                for _ in range(3):
                    assert torch.equal(net(tokens)["logits"], want)
    finally:
        torch.compiler.reset()
