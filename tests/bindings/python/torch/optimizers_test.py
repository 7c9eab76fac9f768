"""The optimizers of streamed weights: what is refused, their state by names, and schedules over all of them."""

import pytest
import torch
from models import Net, adamw, loss_of, same_state, size_of

import libstagehand.torch as st


def grouped(parameters):
    """No decay for vectors. Both groups are always there, so the number of groups does not depend on the block."""
    return torch.optim.AdamW(
        [
            {"params": [one for one in parameters if one.dim() > 1], "weight_decay": 0.1},
            {"params": [one for one in parameters if one.dim() == 1], "weight_decay": 0.0},
        ],
        lr=0.01,
    )


@pytest.fixture
def batches():
    return [torch.randint(0, 50, (3, 7)) for _ in range(6)]


def matrices(parameters):
    return torch.optim.SGD([one for one in parameters if one.dim() > 1], lr=0.1)


BEFORE = torch.nn.Parameter(torch.zeros(1))
OBJECT = torch.optim.SGD([BEFORE], lr=0.1)
# What is given for optimizer=, and what the error says.
REFUSED = [
    (OBJECT, r"is an object \(SGD\).*lambda parameters: torch\.optim"),
    ("adam", r"'adam' is no function.*lambda parameters: torch\.optim"),
    (
        lambda _: torch.optim.SGD([{"params": []}], lr=0.1),
        "of the block 'embed' has no parameters, so it would train nothing",
    ),
    (lambda _: OBJECT, "of the block 'embed' has parameters that are not of the block"),
    (matrices, r"block 'layers\.0' does not have .*layers\.0\.up\.bias.*requires_grad_\(False\)"),
]


@pytest.mark.parametrize("optimizer, problem", REFUSED)
def test_what_is_refused(device, optimizer, problem):
    net = Net()
    with pytest.raises((TypeError, ValueError), match=problem):
        st.stream(net, device, blocks="layers.*", optimizer=optimizer)
    for name, one in net.named_parameters():
        one.requires_grad_(one.dim() > 1)
    with st.stream(net, device, blocks="layers.*", optimizer=torch.optim.SGD):  # a class is a function of this kind
        pass


class Both(torch.optim.Optimizer):
    """Two optimizers, each for one kind of parameters."""

    def __init__(self, parameters):
        kinds = [one for one in parameters if one.dim() > 1], [one for one in parameters if one.dim() == 1]
        makes = [lambda matrices: torch.optim.SGD(matrices, lr=0.1, momentum=0.9), adamw]
        self.parts = [make(kind) for make, kind in zip(makes, kinds) if kind]
        super().__init__(parameters, {})
        self.param_groups = [group for part in self.parts for group in part.param_groups]

    def step(self, closure=None):
        for part in self.parts:
            part.step()


def test_two_optimizers_in_one(device, batches):
    net, other = Net(), Net()
    other.load_state_dict(net.state_dict())
    whole = Both(list(other.parameters()))
    for tokens in batches:
        loss_of(other(tokens)).backward()
        whole.step()
        whole.zero_grad()
    with st.stream(net, device, budget="25%", optimizer=Both) as streamed:
        for tokens in batches:
            loss_of(net(tokens)).backward()
        assert all(one.grad is None for one in net.parameters()) and len(streamed.optimizers) > 4
    assert same_state(net, other)


def train(net, device, budget, batches, make, schedule=None, saved=None):
    """Trains, with a state that another call has returned, and returns such a state."""
    with st.stream(net, device, budget=budget, optimizer=make) as streamed:
        schedulers = [schedule(one) for one in streamed.optimizers.values()] if schedule else []
        if saved is not None:
            streamed.load_optimizer_state(saved["optimizer"])
            for one in schedulers:
                one.load_state_dict(saved["schedule"])
        for tokens in batches:
            loss_of(net(tokens)).backward()
            for one in schedulers:
                one.step()
        return {
            "blocks": len(streamed.blocks()),
            "optimizer": streamed.optimizer_state(),
            "schedule": schedulers[0].state_dict() if schedulers else None,
        }


@pytest.mark.parametrize("schedule", [None, lambda one: torch.optim.lr_scheduler.CosineAnnealingLR(one, T_max=6)])
@pytest.mark.parametrize("make", [adamw, grouped])
def test_training_goes_on_with_another_budget(device, batches, tmp_path, make, schedule):
    net, other = Net(), Net()
    other.load_state_dict(net.state_dict())
    whole = train(other, device, "100%", batches, make, schedule)
    first = train(net, device, "12%", batches[:3], make, schedule)
    torch.save(first, tmp_path / "saved.pt")
    again = Net()
    again.load_state_dict(net.state_dict())
    saved = torch.load(tmp_path / "saved.pt", weights_only=True)
    rest = train(again, device, "100%", batches[3:], make, schedule, saved)
    assert first["blocks"] > rest["blocks"]
    assert same_state(again, other)
    assert rest["optimizer"]["param_groups"] == whole["optimizer"]["param_groups"]


def test_the_state_has_the_names_of_the_parameters(device, batches):
    net = Net()
    net.embed.requires_grad_(False)
    names = [name for name, one in net.named_parameters() if one.requires_grad]
    states = []
    for budget in (size_of(net) // 8, None):
        with st.stream(net, device, budget=budget, optimizer=grouped) as streamed:
            loss_of(net(batches[0])).backward()
            states.append(streamed.optimizer_state())
        assert streamed.optimizer_state().keys() == states[0].keys()  # it can be read after the end
    for state in states:
        assert sorted(state["state"]) == sorted(names)
        assert [group["weight_decay"] for group in state["param_groups"]] == [0.1, 0.0]
        assert sorted(name for group in state["param_groups"] for name in group["params"]) == sorted(names)
        assert all("bias" in name or "norm" in name for name in state["param_groups"][1]["params"])


def test_a_state_of_other_parameters_is_refused_as_a_whole(device, batches):
    net = Net()
    with st.stream(net, device, optimizer=adamw) as streamed:
        loss_of(net(batches[0])).backward()
        state = streamed.optimizer_state()
        group = state["param_groups"][0]
        for names, problem in (
            (group["params"][1:], f"has no parameter {group['params'][0]}, which"),
            ([*group["params"], "more"], "has the parameter more, which the model does not train"),
        ):
            with pytest.raises(ValueError, match=problem):
                streamed.load_optimizer_state({"state": {}, "param_groups": [{**group, "params": names}]})
        with pytest.raises(TypeError, match=r"what optimizer_state\(\) has returned"):
            streamed.load_optimizer_state({})
        name = group["params"][1]
        others = [one for one in group["params"] if one != name]
        apart = [{**group, "params": others}, {**group, "lr": 1.0, "params": [name]}]
        with pytest.raises(ValueError, match="have different options in the saved state"):
            streamed.load_optimizer_state({"state": {}, "param_groups": apart})
        assert all(group["lr"] == 0.01 for one in streamed.optimizers.values() for group in one.param_groups)
        assert all(one.state for one in streamed.optimizers.values())
