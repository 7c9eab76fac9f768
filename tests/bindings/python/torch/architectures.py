"""What the tests of architectures do with each model: forward and generate() are bit-equal in a part of its bytes.

STAGEHAND_TEST_DEVICE names a device other than the host (cuda:0). STAGEHAND_TEST_ALL tries 25 %, 50 % and the smallest
budget that the library tells, in place of 30 %.
"""

import copy
import os

import torch
from models import size_of
from smallest_test import told

import libstagehand as sh
import libstagehand.torch as st

NAME = os.environ.get("STAGEHAND_TEST_DEVICE", "")


def tensors(out):
    if isinstance(out, torch.Tensor):
        return [out]
    values = out.values() if hasattr(out, "values") else out if isinstance(out, (tuple, list)) else []
    return [tensor for value in values for tensor in tensors(value)]


def same(got, want):
    return all(torch.equal(one, other) for one, other in zip(tensors(got), tensors(want), strict=True))


def smallest(model, inputs, device):
    """Returns the smallest budget: a fiftieth, or what the library tells if that is too little."""
    budget = size_of(model) // 50
    try:
        with st.stream(model, device, budget=budget):
            model(**inputs)
    except sh.Error as error:
        return told(error)
    return budget


def budgets(model, inputs, device):
    if not os.environ.get("STAGEHAND_TEST_ALL"):
        return ["30%"]
    least = smallest(model, inputs, device)
    return [max(size_of(model) // 4, least), max(size_of(model) // 2, least), least]


def on(inputs, device):
    return {name: one.to(device) for name, one in inputs.items()}


@torch.no_grad()
def check(model, inputs, device):
    """Compares the streamed model with the resident one. `model` is on the host."""
    place = torch.device(NAME or "cpu")
    inputs = on(inputs, place)
    resident = copy.deepcopy(model).to(place)
    generates = list(inputs) == ["input_ids"] and model.can_generate()
    generation = {"max_new_tokens": 5, "do_sample": False, "pad_token_id": 0}
    want = resident(**inputs)
    assert all(torch.isfinite(one).all() for one in tensors(want))
    tokens = resident.generate(**inputs, **generation) if generates else None
    for budget in budgets(model, inputs, NAME or device):
        with st.stream(model, NAME or device, budget=budget) as streamed:
            for _ in range(3):
                assert same(model(**inputs), want), budget
            if generates:
                for _ in range(2):
                    assert torch.equal(model.generate(**inputs, **generation), tokens), budget
            assert same(model(**inputs), want), budget
        del streamed
