"""Training loops with an optimizer, a schedule, accumulation or clipping of their own are refused where they would
do nothing to weights that are trained while they are streamed.
"""

import pytest
import torch
from models import Net, loss_of, sgd, size_of
from torch import nn
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments

import libstagehand.torch as st

REMEDY = r".*Trainer of transformers.*streamed\.accumulate\(\).*streamed\.optimize\(\).*streamed\.optimizers"


@pytest.mark.parametrize("accumulates", [False, True])
@pytest.mark.parametrize("kind", [torch.optim.AdamW, torch.optim.SGD, torch.optim.Adafactor])
def test_a_step_of_an_outer_optimizer_is_refused(device, tokens, kind, accumulates):
    net = Net()
    early = kind(net.parameters(), lr=0.0)
    with st.stream(net, device, budget=size_of(net) // 4, blocks="layers.*", optimizer=sgd) as streamed:
        for outer in (early, kind(net.parameters(), lr=0.0)):
            schedule = torch.optim.lr_scheduler.LambdaLR(outer, lambda step: 0.0)
            if accumulates:
                with streamed.accumulate():
                    loss_of(net(tokens)).backward()
            else:
                loss_of(net(tokens)).backward()
            with pytest.raises(RuntimeError, match=rf"{kind.__name__}\.step\(\) was called for embed\.weight{REMEDY}"):
                outer.step()
                schedule.step()
            outer.zero_grad()
    loss_of(net(tokens)).backward()
    before = net.embed.weight.detach().clone()
    early.param_groups[0]["lr"] = 0.1
    early.step()  # streaming has ended
    assert not torch.equal(net.embed.weight, before)


@pytest.mark.parametrize("clip", [nn.utils.clip_grad_norm_, nn.utils.clip_grad_value_])
@pytest.mark.parametrize("foreach", [None, False])
def test_a_clip_of_gradients_that_were_given_up_is_refused(device, tokens, clip, foreach):
    net = Net()
    with st.stream(net, device, budget=size_of(net) // 4, blocks="layers.*", optimizer=sgd) as streamed:
        loss_of(net(tokens)).backward()
        with pytest.raises(RuntimeError, match=rf"gradient of embed\.weight cannot be clipped.*given up{REMEDY}"):
            clip(net.parameters(), 1.0, foreach=foreach)
        with streamed.accumulate():
            net.layers[0](torch.randn(3, 7, 64)).sum().backward()  # the others have no gradient
        clip(net.parameters(), 0.001, foreach=foreach)
        norm = nn.utils.get_total_norm([one.grad for one in net.parameters() if one.grad is not None])
        assert 0 < norm < 1
        streamed.optimize()
        assert all(one.grad is None for one in net.parameters())
    assert not nn.utils.clip_grad_norm_(net.parameters(), 1.0)  # streaming has ended


def test_an_optimizer_of_other_parameters(device, tokens):
    """Of those outside, and of those of another model."""
    net, other = Net(), nn.Linear(4, 4)
    before = net.embed.weight.detach().clone()
    with st.stream(net, device, blocks="layers.*", outside="embed.weight", optimizer=sgd):
        outer = torch.optim.SGD([net.embed.weight, *other.parameters()], lr=0.1)
        (loss_of(net(tokens)) + other(torch.ones(4)).sum()).backward()
        assert nn.utils.clip_grad_norm_([net.embed.weight], 1.0)
        outer.step()
    assert not torch.equal(net.embed.weight, before)


class Data(torch.utils.data.Dataset):
    def __len__(self):
        return 8

    def __getitem__(self, index):
        return {"input_ids": torch.arange(8) + index, "labels": torch.arange(8) + index}


@pytest.mark.parametrize("clipped", [0.0, 1.0])
@pytest.mark.parametrize("accumulated", [1, 2])
def test_the_trainer_of_transformers_is_refused_at_its_first_step(device, tmp_path, clipped, accumulated):
    config = LlamaConfig(
        hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=2, vocab_size=64
    )  # fmt: skip
    model = LlamaForCausalLM(config)
    arguments = TrainingArguments(
        str(tmp_path), max_steps=4, learning_rate=0.0, max_grad_norm=clipped, gradient_accumulation_steps=accumulated,
        per_device_train_batch_size=2, use_cpu=True, report_to=[], save_strategy="no", disable_tqdm=True,
    )  # fmt: skip
    with st.stream(model, device, optimizer=sgd):
        trainer = Trainer(model, arguments, train_dataset=Data())
        with pytest.raises(RuntimeError, match=r"model\..*optimizer= of stream\(\)" + REMEDY):
            trainer.train()
        assert trainer.state.global_step == 0
