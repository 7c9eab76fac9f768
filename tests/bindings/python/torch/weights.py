"""What programs do to weights while these are streamed, in tables: changes, exchanges and moves of their memory."""

import copy
from multiprocessing.reduction import ForkingPickler

import torch
import torch.multiprocessing  # which tells multiprocessing about tensors
from models import NAME


class Sub(torch.Tensor):
    pass


def values(*shape):
    return torch.arange(float(torch.Size(shape).numel())).reshape(shape) / 1000


NEW = torch.linspace(-1, 1, 32 * 64).view(32, 64)


def assigned(weight):
    """As adapters of peft take their part from a weight."""
    other = weight.to(torch.float32)
    other.data *= 2
    weight.data = other


def augmented(weight):
    weight.data += weight.data


# Changes of a weight of 128 x 64.
OF_WEIGHT = {
    "the weight": lambda weight: weight.add_(1),
    "div_": lambda weight: weight.div_(4),
    "by a tensor": lambda weight: weight.mul_(torch.full((64,), 2.0, device=weight.device)),
    "copy_": lambda weight: weight.copy_(torch.ones(128, 64)),
    "index_fill_": lambda weight: weight.index_fill_(0, torch.tensor([1, 2], device=weight.device), 5.0),
    "data": lambda weight: weight.data.mul_(2),
    "augmented data": augmented,
    "detached": lambda weight: weight.detach().mul_(2),
    "copied data": lambda weight: weight.data.copy_(weight.data * 2),
    "assigned data": assigned,
    "row": lambda weight: weight[3].zero_(),
    "view of the data": lambda weight: weight.data.t()[5].add_(7),
    "copy of a view": lambda weight: copy.copy(weight.data[2:9]).mul_(2),
    "copy of the weight": lambda weight: copy.copy(weight).mul_(2),
    "subclass": lambda weight: weight.data[2:9].as_subclass(Sub).mul_(2),
    # What loaders of sharded weights do. idle_views_test.py has every view of PyTorch's.
    "chunk of the data": lambda weight: weight.data.chunk(4)[1].copy_(NEW),
    "T": lambda weight: weight.T[:, :32].copy_(NEW.T),
    "index": lambda weight: weight[32:64].copy_(NEW),
    # Other contents.
    "set_": lambda weight: weight.set_(values(128, 64).to(weight.device)),
    "set_ of the data, which changes no weight": lambda weight: weight.data.set_(values(128, 64).to(weight.device)),
    "set_ to a part of a storage": lambda weight: weight.set_(
        values(128 * 64 + 8).to(weight.device).untyped_storage(), 8, (128, 64)
    ),
    "set_ with other strides": lambda weight: weight.set_(values(64, 128).to(weight.device).t()),
    "set_ to itself": lambda weight: weight.set_(weight.data * 2),
    "resize_ to its shape": lambda weight: weight.resize_(128, 64),
    "other data": lambda weight: setattr(weight, "data", values(128, 64).to(weight.device)),
    "data of a view of itself": lambda weight: setattr(weight, "data", weight.data.flip(0)),
    "t_ of the data": lambda weight: weight.data.t_().mul_(2),
    "foreach": lambda weight: torch._foreach_add_([weight, values(4)], 1.0),
    "foreach over parts": lambda weight: torch._foreach_mul_(list(weight.chunk(2)), [2.0, 3.0]),
    "foreach with lists": lambda weight: torch._foreach_lerp_([weight], [values(128, 64).to(weight.device)], 0.25),
    "out": lambda weight: torch.add(values(128, 64).to(weight.device), 1, out=weight),
    "two results": lambda weight: torch.sort(
        values(128, 64).flip(1).to(weight.device), out=(weight, torch.empty(0, dtype=torch.long, device=weight.device))
    ),
    "out that is a view": lambda weight: torch.add(values(64, 64).to(weight.device), 1, out=weight[:64]),
    "out over the same view": lambda weight: torch.add(weight[1:], 1, out=weight[1:]),
}


def loaded(net):
    net.load_state_dict({name: one * 2 for name, one in net.state_dict().items()})
    net.layers[5].load_state_dict(net.layers[3].state_dict())


# Changes of a net.
CHANGES = {name: lambda net, change=change: change(net.get_parameter(NAME)) for name, change in OF_WEIGHT.items()}
CHANGES |= {
    "state dict": lambda net: net.state_dict()[NAME].mul_(2),
    "loaded state dict": loaded,
    "another weight": lambda net: net.layers[5].down.weight.copy_(net.layers[4].down.weight),
    "data of another weight": lambda net: setattr(net.layers[3].up.weight, "data", net.get_parameter(NAME).data * 2),
    "function over modules": lambda net: net._apply(lambda tensor: tensor * 2).layers[2]._apply(torch.neg),
}


# Exchanges with averages, as code for exponential moving averages has them.


def swap(weight, average):
    weight.data, average.data = average.data, weight.data


def swap_backwards(weight, average):
    average.data, weight.data = weight.data, average.data


def swap_by(read):
    def swap(weight, average):
        before = read(weight)
        weight.data = average.data
        average.data = before

    return swap


def swap_copies(weight, average):
    before = weight.data.clone()
    weight.data.copy_(average)
    average.copy_(before)


SWAPS = {
    "at once": swap,
    "backwards": swap_backwards,
    "by name": swap_by(lambda weight: weight.data),
    "by view": swap_by(lambda weight: weight.data.view(-1).view(weight.shape)),
    "detached": swap_by(lambda weight: weight.detach()),
    "by copies": swap_copies,
}

# What moves or resizes the memory of tensors that were read.
MOVES = {
    "state dict to another process": lambda net: ForkingPickler.dumps(net.state_dict()),
    "model to another process": ForkingPickler.dumps,
    "weight to another process": lambda net: ForkingPickler.dumps(net.get_parameter(NAME)),
    "shared state dict": lambda net: [one.share_memory_() for one in net.state_dict().values()],
    "shared storage": lambda net: net.get_parameter(NAME).untyped_storage().share_memory_(),
    "shared storage of a view": lambda net: net.get_parameter(NAME).data[3:].untyped_storage().share_memory_(),
    "smaller": lambda net: net.get_parameter(NAME).detach().resize_(3, 64),
    "smaller view": lambda net: net.get_parameter(NAME).data.resize_(3, 64),
    "larger view": lambda net: net.get_parameter(NAME).data.resize_(1000, 64),
}
