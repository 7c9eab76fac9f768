"""Models of the package transformers, built from their configuration, without a line changed."""

import pytest
import torch
from models import size_of

import libstagehand as sh
import libstagehand.torch as st

transformers = pytest.importorskip("transformers")


def llama(**options):
    config = transformers.LlamaConfig(
        vocab_size=256,
        hidden_size=64,
        intermediate_size=160,
        num_hidden_layers=12,
        num_attention_heads=4,
        num_key_value_heads=2,
        **options,
    )
    return transformers.LlamaForCausalLM(config).eval()


def mixtral():
    config = transformers.MixtralConfig(
        vocab_size=128,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=6,
        num_attention_heads=4,
        num_key_value_heads=2,
        num_local_experts=4,
    )
    return transformers.MixtralForCausalLM(config).eval()


def gpt2():
    return transformers.GPT2LMHeadModel(
        transformers.GPT2Config(vocab_size=256, n_positions=64, n_embd=64, n_layer=12, n_head=4)
    ).eval()


def bert():
    shape = {
        "vocab_size": 256,
        "hidden_size": 64,
        "num_hidden_layers": 12,
        "num_attention_heads": 4,
        "intermediate_size": 160,
    }
    return transformers.BertModel(transformers.BertConfig(**shape)).eval()


@pytest.fixture
def ids():
    return torch.randint(0, 128, (2, 11))


def first(out):
    return out.logits if hasattr(out, "logits") else out.last_hidden_state


@pytest.mark.parametrize("make", [llama, lambda: llama(tie_word_embeddings=True), gpt2, bert, mixtral])
def test_bit_equal_in_a_quarter(make, ids):
    model = make()
    with torch.no_grad():
        want = first(model(ids))
        with sh.Device("host", page_bytes=4096, budget_bytes=size_of(model) // 4, backend_options="poison=1") as device:
            with st.stream(model, device) as streamed:
                for _ in range(3):
                    assert torch.equal(first(model(ids)), want)
                assert streamed.stats().bytes_to_device > 2 * (size_of(model) * 3 // 4)
            assert device.memory().peak_bytes <= size_of(model) // 4
        assert torch.equal(first(model(ids)), want)


def test_generate(device, ids):
    model = llama()
    with torch.inference_mode():
        want = model.generate(ids, max_new_tokens=8, do_sample=False)
        with st.stream(model, device, budget=size_of(model) // 4):
            assert torch.equal(model.generate(ids, max_new_tokens=8, do_sample=False), want)


def test_saved_while_streamed_and_streamed_from_its_files(device, ids, tmp_path):
    model = llama()
    with torch.no_grad():
        want = model(ids).logits
        with st.stream(model, device, budget=size_of(model) // 4):
            model(ids)
            model.save_pretrained(tmp_path)
        with torch.device("meta"):
            meta = transformers.LlamaForCausalLM(model.config).eval()
        # What is computed, not stored.
        meta.model.rotary_emb = type(meta.model.rotary_emb)(model.config)
        with st.stream(meta, device, budget=size_of(model) // 4, files=tmp_path):
            for _ in range(3):
                assert torch.equal(meta(ids).logits, want)


@pytest.mark.parametrize("checkpointing", [None, False, True])
def test_lora_by_peft(device, ids, checkpointing):
    peft = pytest.importorskip("peft")
    model = peft.get_peft_model(
        llama(), peft.LoraConfig(target_modules=["q_proj", "down_proj"], r=4, init_lora_weights=False)
    ).train()
    if checkpointing is not None:
        model.gradient_checkpointing_enable({"use_reentrant": checkpointing})
        model.enable_input_require_grads()

    def step():
        model.zero_grad(set_to_none=True)
        loss = model(input_ids=ids, labels=ids).loss
        loss.backward()
        return [loss.detach(), *(one.grad for one in model.parameters() if one.requires_grad)]

    want = step()
    with st.stream(model, device, budget=size_of(model) // 4) as streamed:
        for _ in range(3):
            got = step()
            assert len(got) == 49 and all(torch.equal(one, other) for one, other in zip(got, want))
        assert streamed.stats().steps == 3
