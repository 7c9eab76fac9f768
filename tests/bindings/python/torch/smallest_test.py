"""The smallest budget that an error tells: it works, and less is refused at once with the same number."""

import copy
import re

import pytest
import torch
from models import PAGE, Net, size_of
from torch import nn

import libstagehand as sh
import libstagehand.torch as st

transformers = pytest.importorskip("transformers")

_SMALL = {"vocab_size": 256, "hidden_size": 64, "num_hidden_layers": 4, "num_attention_heads": 4}
_VISION = {"hidden_size": 64, "intermediate_size": 160, "num_hidden_layers": 4, "num_attention_heads": 4}
_IMAGE = {"image_size": 32, "patch_size": 8}
_HALF = {"decoder_" + key: value for key, value in {"layers": 3, "attention_heads": 4, "ffn_dim": 160}.items()}
_OTHER_HALF = {key.replace("decoder", "encoder"): value for key, value in _HALF.items()}


def tokens():
    return {"input_ids": torch.randint(3, 200, (2, 9))}


def image(size=32):
    return {"pixel_values": torch.randn(2, 3, size, size)}


def both():
    return {**tokens(), "decoder_input_ids": torch.randint(3, 200, (2, 5))}


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

    def forward(self, tokens, **_):
        out = self.net(tokens)
        return {**out, "hidden": out["hidden"] + self.table[tokens]}


def tied():
    net = Net()
    net.head.weight = net.embed.weight
    return net


CASES = [
    of("BertForMaskedLM", "BertConfig", tokens, **_SMALL, intermediate_size=160),
    of("BertModel", "BertConfig", tokens, **_SMALL, intermediate_size=160),
    pytest.param(clip, lambda: {**tokens(), **image()}, id="CLIP"),
    of("ConvNextForImageClassification", "ConvNextConfig", image, hidden_sizes=[16, 32, 48, 64], depths=[1, 1, 3, 1]),
    of("LlamaForCausalLM", "LlamaConfig", tokens, **_SMALL, intermediate_size=160),
    of("LlamaForCausalLM", "LlamaConfig", tokens, **_SMALL, intermediate_size=160, tie_word_embeddings=True),
    of("T5ForConditionalGeneration", "T5Config", both, vocab_size=256, d_model=64, d_kv=16, d_ff=160, num_layers=3),
    of("GPT2LMHeadModel", "GPT2Config", tokens, vocab_size=256, n_positions=64, n_embd=64, n_layer=4, n_head=4),
    of("ViTForImageClassification", "ViTConfig", image, **_VISION, **_IMAGE),
    of("Dinov2Model", "Dinov2Config", image, **_VISION, **_IMAGE),
    of("BeitModel", "BeitConfig", image, **_VISION, **_IMAGE),
    of(
        "DebertaV2ForMaskedLM",
        "DebertaV2Config",
        tokens,
        **_SMALL,
        intermediate_size=160,
        relative_attention=True,
        position_buckets=8,
        pos_att_type=["p2c", "c2p"],
    ),
    of("BartForConditionalGeneration", "BartConfig", both, vocab_size=256, d_model=64, **_HALF, **_OTHER_HALF),
    of("AlbertForMaskedLM", "AlbertConfig", tokens, **_SMALL, embedding_size=32, intermediate_size=160),
    of("ElectraForMaskedLM", "ElectraConfig", tokens, **_SMALL, embedding_size=32, intermediate_size=160),
    of("MixtralForCausalLM", "MixtralConfig", tokens, **_SMALL, intermediate_size=64, num_key_value_heads=2, num_local_experts=4),
    of("MambaForCausalLM", "MambaConfig", tokens, vocab_size=256, hidden_size=64, state_size=8, num_hidden_layers=4),
    of("OPTForCausalLM", "OPTConfig", tokens, **_SMALL, ffn_dim=160, word_embed_proj_dim=32, pad_token_id=1),
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
    found = re.search(r"the smallest that works is (?:[^()]*\()?(\d+) bytes", str(error))
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
    try:
        way(model, number, run)
    except RuntimeError as error:
        if "Another module than the reading one" in str(error):
            pytest.skip("modules read weights of modules that they do not call")
        raise
    with pytest.raises(sh.BudgetError) as less:
        way(model, number - 1, run)
    assert told(less.value) == number
