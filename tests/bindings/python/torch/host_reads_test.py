"""Reads of weights outside of their block: from the source, or refused; never what lies in their memory by then. Trap
41.
"""

import copy
import io
import pickle
from contextlib import nullcontext

import pytest
import torch
from models import Net, size_of
from torch import nn
from torch.utils.checkpoint import checkpoint

import libstagehand.torch as st


@pytest.fixture
def streamed(device, net, tokens, quarter):
    with torch.no_grad(), st.stream(net, device, budget=quarter) as streamed:
        for _ in range(2):
            net(tokens)
        yield streamed


@pytest.fixture
def wanted(net):
    return {name: value.clone() for name, value in net.state_dict().items()}


def same(state, wanted):
    return state.keys() == wanted.keys() and all(torch.equal(state[name], wanted[name]) for name in wanted)


def test_trap_41_state_dicts(wanted, streamed, net):
    assert same(net.state_dict(), wanted)
    assert same(
        net.layers[4].state_dict(prefix="layers.4."),
        {name: wanted[name] for name in wanted if name.startswith("layers.4.")},
    )
    kept = net.state_dict(keep_vars=True)
    assert same(kept, wanted) and isinstance(kept["head.weight"], nn.Parameter)


def test_trap_41_a_state_dict_within_a_step(wanted, streamed, net, tokens):
    seen = []
    net.layers[4].register_forward_hook(lambda *_: seen.append(net.state_dict()))
    net(tokens)
    assert len(seen) == 1 and same(seen[0], wanted)


def test_trap_41_methods_of_parameters(wanted, streamed, net):
    weight = net.layers[6].up.weight
    want = wanted["layers.6.up.weight"]
    for got in (
        weight.cpu(),
        weight.clone(),
        weight.detach(),
        weight.data,
        weight.to(torch.float32),
        weight.float(),
        torch.tensor(weight.tolist()),
        torch.from_numpy(weight.detach().numpy()),
        weight.detach().clone(),
        weight.data.cpu(),
        torch.from_dlpack(weight),
        weight.as_subclass(torch.Tensor),
        torch.empty(0).set_(weight.untyped_storage(), 0, (128, 64)),
    ):
        assert torch.equal(got, want)
    assert weight.double().dtype == torch.float64 and torch.equal(weight.half(), want.half())
    assert repr(weight) == repr(nn.Parameter(want, requires_grad=False)) and str(want[0, 0].item())[:5] in f"{weight}"


def test_operations_while_no_module_runs(streamed, wanted, net):
    weight, want, other = net.layers[6].up.weight, wanted["layers.6.up.weight"], torch.zeros(1)
    other.data = weight
    for read in (
        lambda weight: weight + 1,
        lambda weight: weight.sum(),
        lambda weight: torch.stack([weight, weight]),
        lambda weight: weight.t().contiguous(),
        lambda weight: weight[0] * 2,
        lambda weight: torch.asarray(weight, copy=True),
        lambda weight: torch.zeros(1).new_tensor(weight),
        lambda weight: torch.zeros(128, 64).copy_(weight),
        lambda weight: torch.vmap(lambda row: row * 2)(weight),
        lambda weight: torch.cat(
            [weight, net.layers[7].up.weight if weight is not want else wanted["layers.7.up.weight"]]
        ),
    ):
        assert torch.equal(read(weight), read(want))
    assert torch.equal(other + 1, want + 1)
    with pytest.raises(RuntimeError, match="so its data cannot be replaced"):
        weight.data = torch.zeros(1)
    assert (
        weight.shape == (128, 64) and weight.numel() == 8192 and weight.device.type == "cpu" and weight.is_contiguous()
    )


def test_changes_while_no_module_runs(device, net, tokens):
    other = copy.deepcopy(net)
    with torch.no_grad(), st.stream(net, device, budget=size_of(net) // 4):
        for change in (
            lambda net: net.layers[6].up.weight.add_(1),
            lambda net: net.layers[6].up.weight[3].zero_(),
            lambda net: net.layers[5].down.weight.copy_(net.layers[4].down.weight),
            lambda net: setattr(net.layers[3].up.weight, "data", net.layers[2].up.weight.data * 2),
        ):
            change(net)
            change(other)
            for _ in range(2):
                assert torch.equal(net(tokens)["logits"], other(tokens)["logits"])


def test_a_change_between_a_forward_and_its_backward_is_seen(device, net, tokens):
    with st.stream(net, device, budget=size_of(net) // 4):
        loss = (net.embed(tokens).requires_grad_() * net.layers[0].up.weight[0]).sum()
        with torch.no_grad():
            net.layers[0].up.weight.add_(1)
        loss.backward()  # the gradient does not need the weight
        x = torch.randn(3, 64, requires_grad=True)
        loss = net.layers[0](x).sum()
        with torch.no_grad():
            net.layers[0].up.weight.add_(1)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            loss.backward()
        other = copy.deepcopy(net)
        assert torch.equal(net(tokens)["logits"], other(tokens)["logits"])


def test_gradients_of_operations_while_no_module_runs(device):
    """A term of the loss that is computed from a trained weight by itself."""

    def train(stream):
        torch.manual_seed(3)
        model, losses = nn.Sequential(*(nn.Linear(64, 64) for _ in range(4))), []
        optimizer = None if stream else torch.optim.SGD(model.parameters(), lr=0.1)
        make = lambda some: torch.optim.SGD(some, lr=0.1)  # noqa: E731
        with st.stream(model, device, budget="75%", optimizer=make) if stream else nullcontext():
            for _ in range(4):
                loss = model(torch.ones(2, 64)).square().mean() + model[2].weight.square().sum() / 100
                losses.append(loss.item())
                loss.backward()
                if optimizer is not None:
                    optimizer.step()
                    optimizer.zero_grad()
        return losses, [one.detach().clone() for one in model.parameters()]

    want, got = train(False), train(True)
    assert got[0] == want[0] and all(torch.equal(one, other) for one, other in zip(got[1], want[1]))


# What is made of a weight by itself, with the gradient that the weight gets.
DIFFERENTIATED = {
    "clone": lambda w: w.clone(),
    "clone in a format": lambda w: w.clone(memory_format=torch.contiguous_format),
    "to": lambda w: w.to(torch.float64),
    "to nothing else": lambda w: w.to(torch.float32),
    "to a copy": lambda w: w.to("cpu", copy=True),
    "half": lambda w: w.half(),
    "type": lambda w: w.type(torch.float64),
    "cpu": lambda w: w.cpu(),
    "subclass": lambda w: w.as_subclass(torch.Tensor) * 2,
    "clone of a view": lambda w: w[3:].clone(),
    "checkpoint": lambda w: checkpoint(lambda v: v.clone().sin(), w, use_reentrant=False),
    "vmap": lambda w: torch.vmap(torch.square)(w),
    "vmap of clones": lambda w: torch.vmap(lambda row: row.clone())(w),
    "vmap of a view": lambda w: torch.vmap(lambda row: row[3:] * 2)(w[1:]),
    "vmap beside": lambda w: torch.vmap(lambda x: (w.clone() * x).sum(0))(torch.arange(3.0)),
    "vmap of grad": lambda w: torch.vmap(torch.func.grad(lambda row: (row.clone() ** 3).sum()))(w),
    "grad of vmap": lambda w: torch.func.grad(lambda v: torch.vmap(lambda row: row.clone() ** 3)(v).sum())(w),
    "grad": lambda w: torch.func.grad(lambda v: (v.clone() ** 3).sum())(w),
    "grad beside": lambda w: torch.func.grad(lambda x: ((w.clone() * x) ** 2).sum())(torch.ones(64)),
    "jvp": lambda w: torch.func.jvp(lambda v: v.to(torch.float64) ** 2, (w,), (torch.ones(128, 64),))[1],
    "jvp beside": lambda w: torch.func.jvp(lambda x: (w.clone() * x) ** 2, (torch.ones(64),), (torch.ones(64),))[1],
    "hessian": lambda w: torch.func.hessian(lambda v: (v.clone() ** 3).sum())(w[:2, :2]),
}


@pytest.mark.parametrize("make", DIFFERENTIATED.values(), ids=DIFFERENTIATED)
def test_gradients_reach_the_weight(device, tokens, make):
    net, name = Net(), "layers.6.up.weight"
    plain = copy.deepcopy(net)

    def gradient(weight):
        (found,) = torch.autograd.grad(make(weight).double().square().sum(), weight)
        return found

    with st.stream(net, device, budget="50%", optimizer=lambda some: torch.optim.SGD(some, lr=0)):
        for _ in range(2):
            assert torch.equal(gradient(net.get_parameter(name)), gradient(plain.get_parameter(name)))
            with torch.no_grad():
                assert torch.equal(net(tokens)["logits"], plain(tokens)["logits"])
                assert same(net.state_dict(), plain.state_dict())


def test_a_clone_within_a_transform_leaves_the_source_alone(streamed, net, wanted):
    weight = net.layers[6].up.weight
    for read in (
        torch.clone,
        torch.Tensor.cpu,
        copy.deepcopy,
        lambda weight: weight.data[3:].as_subclass(torch.Tensor),
    ):
        torch.func.grad(lambda x, read=read: (read(weight)[:, :3] * x).sum())(torch.ones(3))
        torch.vmap(lambda x, read=read: read(weight)[:, :3] * x)(torch.ones(2, 3))
        assert same(net.state_dict(), wanted)
    streamed.close()
    assert same(net.state_dict(), wanted)


def test_trap_41_copies_and_pickles(wanted, streamed, net, tokens):
    want = net(tokens)["logits"]
    file = io.BytesIO()
    torch.save(net, file)
    file.seek(0)
    parameter = copy.deepcopy(net.head.weight)
    assert type(parameter) is nn.Parameter and torch.equal(parameter, wanted["head.weight"])
    for made in (copy.deepcopy(net), pickle.loads(pickle.dumps(net)), torch.load(file, weights_only=False)):
        assert same(made.state_dict(), wanted)
        assert all(type(one) is nn.Parameter and not one.__dict__ for one in made.parameters())
        assert not any(
            part._forward_hooks or part._forward_pre_hooks or part._state_dict_hooks or part._load_state_dict_pre_hooks
            for part in made.modules()
        )
        assert torch.equal(made(tokens)["logits"], want)
        made.double()
    part = copy.deepcopy(net.layers[2])
    assert torch.equal(part.up.weight, wanted["layers.2.up.weight"])
    assert torch.equal(net(tokens)["logits"], want)


def test_conversions_are_refused_before_anything_is_converted(streamed, net, tokens):
    want = net(tokens)["logits"]
    net.register_buffer("small", torch.zeros(3))
    for convert in (net.half, net.double, lambda: net.to("meta"), lambda: net.layers[3].to(torch.bfloat16)):
        with pytest.raises(RuntimeError, match=r"is streamed as float32 on cpu and cannot be made"):
            convert()
    assert net.small.dtype == torch.float32
    assert net.to("cpu") is net and net.float() is net and net.eval() is net
    assert torch.equal(net(tokens)["logits"], want)


def test_load_state_dict_writes_the_sources(streamed, net, tokens):
    other = Net().requires_grad_(False)
    want = other(tokens)["logits"]
    assert not torch.equal(net(tokens)["logits"], want)
    net.load_state_dict(other.state_dict())
    for _ in range(2):
        assert torch.equal(net(tokens)["logits"], want)
    assert same(net.state_dict(), other.state_dict())
    third = Net().requires_grad_(False)
    net.layers[5].load_state_dict(third.layers[5].state_dict())
    other.layers[5].load_state_dict(third.layers[5].state_dict())
    assert torch.equal(net(tokens)["logits"], other(tokens)["logits"])
    streamed.close()
    assert same(net.state_dict(), other.state_dict())


def test_load_state_dict_refuses_what_does_not_fit(wanted, streamed, net, tokens):
    want = net(tokens)["logits"]
    with pytest.raises(RuntimeError, match="assign=True"):
        net.load_state_dict(wanted, assign=True)
    wrong = dict(wanted, **{"head.weight": torch.zeros(3, 3)})
    del wrong["embed.weight"]
    with pytest.raises(RuntimeError, match=r"(?s)Missing.*embed\.weight.*size mismatch for head\.weight"):
        net.load_state_dict(wrong)
    assert torch.equal(net(tokens)["logits"], want)


def test_trap_40_casts_of_weights_are_not_kept(streamed, net, tokens):
    """Autocast keeps casts of weights that require a gradient: not past their block, and not past a change."""
    other = Net()
    with torch.autocast("cpu", torch.bfloat16):
        want = other(tokens)["logits"]
        net.requires_grad_(True)
        net(tokens)
        net.load_state_dict(other.state_dict())
        assert torch.equal(net(tokens)["logits"], want)
        other.load_state_dict(Net().state_dict())
        net.load_state_dict(other.state_dict())
        torch.clear_autocast_cache()
        assert torch.equal(net(tokens)["logits"], other(tokens)["logits"])


def test_a_parameter_that_was_replaced(streamed, net, tokens):
    """A state dict has what the module has, and the end of streaming leaves it."""
    other = Net().requires_grad_(False)
    other.load_state_dict(net.state_dict())
    streamed_weight = net.layers[0].up.weight
    net.layers[0].up.weight = nn.Parameter(torch.randn(128, 64), requires_grad=False)
    other.layers[0].up.weight = nn.Parameter(net.layers[0].up.weight.clone(), requires_grad=False)
    assert same(net.state_dict(), other.state_dict())
    assert net.state_dict(keep_vars=True)["layers.0.up.weight"] is net.layers[0].up.weight
    assert torch.equal(net(tokens)["logits"], other(tokens)["logits"])
    third = Net().requires_grad_(False)
    net.load_state_dict(third.state_dict())
    assert same(net.state_dict(), third.state_dict()) and not torch.equal(
        streamed_weight.cpu(), third.layers[0].up.weight
    )
    assert torch.equal(net(tokens)["logits"], third(tokens)["logits"])
    streamed.close()
    assert same(net.state_dict(), third.state_dict())


def test_what_stream_returned_is_not_copied(streamed, net, tokens):
    net.trainer = [streamed]  # a plain attribute
    for copied in (copy.copy, copy.deepcopy, pickle.dumps, lambda one: torch.save(one, io.BytesIO())):
        with pytest.raises(TypeError, match="cannot be copied or pickled: copy or pickle its module"):
            copied(streamed)
    with pytest.raises(TypeError, match="cannot be copied or pickled: copy or pickle its module"):
        copy.deepcopy(net)
    net(tokens)


@pytest.mark.filterwarnings("ignore")
def test_traces_are_refused(streamed, net, tokens):
    want = net(tokens)["logits"]
    for module, x in ((net, tokens), (net.layers[2], torch.zeros(2, 64))):
        with pytest.raises(RuntimeError, match="cannot be traced"):
            torch.jit.trace(module, (x,), strict=False)
    assert torch.equal(net(tokens)["logits"], want)


def test_what_others_make_of_the_class_of_a_weight(streamed, net, tokens):
    want = net(tokens)["logits"]
    kind = type(net.head.weight)
    made = kind(torch.zeros(3), requires_grad=False)
    assert type(made) is nn.Parameter and not made.requires_grad
    plain = torch.Tensor._make_subclass(kind, torch.ones(3))
    plain.data = torch.zeros(3)
    for one in (made, plain, copy.deepcopy(plain)):
        assert torch.equal(one.detach() + one.data + one.clone() + one, torch.zeros(3)) and "0., 0., 0." in repr(one)
    assert torch.equal(net(tokens)["logits"], want)


def test_a_weight_that_is_tied_while_it_is_streamed_is_refused(streamed, net, tokens):
    want = net(tokens)["logits"]
    before, net.head.weight = net.head.weight, net.embed.weight
    for _ in range(2):
        with pytest.raises(RuntimeError, match=r"head\.weight was tied to embed\.weight while both are streamed"):
            net(tokens)
    net.head.weight = before
    assert torch.equal(net(tokens)["logits"], want)


def test_a_weight_is_stored_without_others(streamed, net):
    for value in [net.head.bias.detach(), *net.state_dict().values()]:
        assert value.untyped_storage().nbytes() == value.numel() * 4


@pytest.mark.parametrize("mode", [torch.inference_mode, torch.no_grad])
def test_load_state_dict_in_other_modes(streamed, net, tokens, mode):
    other = Net().requires_grad_(False)
    with mode():
        net.load_state_dict(other.state_dict())
    assert torch.equal(net(tokens)["logits"], other(tokens)["logits"])
    with mode():
        assert torch.equal(net(tokens)["logits"], other(tokens)["logits"])
