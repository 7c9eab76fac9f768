"""What the tests of spill_activations() share: models, the gradients of a step, and the comparison of a program."""

import torch
from models import equal
from torch import nn
from torch.nn import functional as F

import libstagehand.torch as st


class Mlp(nn.Module):
    def __init__(self, width=64):
        super().__init__()
        layers = [
            nn.Sequential(nn.LayerNorm(width), nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))
        ]
        self.layers = nn.ModuleList(layers + [nn.Sequential(nn.Linear(width, width), nn.SiLU()) for _ in range(4)])

    def forward(self, x):
        for layer in self.layers:
            x = x + layer(x)
        return x


class Convnet(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(inplace=True), nn.MaxPool2d(2),
            nn.Conv2d(8, 16, 3, padding=1), nn.GroupNorm(4, 16), nn.ReLU(), nn.AdaptiveAvgPool2d(4),
        )  # fmt: skip
        self.head = nn.Linear(256, 10)

    def forward(self, x):
        return self.head(self.body(x).flatten(1))


class Blocks(nn.Module):
    """Transformer blocks with dropout."""

    def __init__(self):
        super().__init__()
        layer = nn.TransformerEncoderLayer(64, 4, 128, dropout=0.1, batch_first=True)
        self.layers = nn.TransformerEncoder(layer, 3, enable_nested_tensor=False)

    def forward(self, x):
        return self.layers(x)


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.lstm = nn.LSTM(32, 48, num_layers=2, batch_first=True, dropout=0.2)
        self.head = nn.Linear(48, 7)

    def forward(self, x):
        return self.head(self.lstm(x)[0])


class Unfused(Recurrent):
    """Without the kernel of oneDNN, so that the gates of a cell are changed where they lie."""

    def forward(self, x):
        with torch.backends.mkldnn.flags(enabled=False):
            return super().forward(x)


MODELS = {
    "mlp": (Mlp, (16, 64)),
    "convnet": (Convnet, (4, 3, 16, 16)),
    "blocks": (Blocks, (4, 12, 64)),
    "recurrent": (Recurrent, (4, 9, 32)),
    "unfused": (Unfused, (4, 9, 32)),
}


class Norm(nn.Module):
    """As the Llama of transformers has it."""

    def __init__(self, width=64):
        super().__init__()
        self.weight = nn.Parameter(torch.rand(width))

    def forward(self, x):
        dtype = x.dtype
        x = x.to(torch.float32)
        x = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-5)
        return self.weight * x.to(dtype)


class Gated(nn.Module):
    """The layer of a Llama without its attention."""

    def __init__(self, width=64, wide=256, norm=Norm):
        super().__init__()
        self.norm = norm(width)
        self.gate, self.up, self.down = nn.Linear(width, wide), nn.Linear(width, wide), nn.Linear(wide, width)

    def forward(self, x):
        h = self.norm(x)
        return x + self.down(F.silu(self.gate(h)) * self.up(h))


class Attention(nn.Module):
    """Attention as products of matrices, with dropout."""

    def __init__(self, width=64, function=F.dropout):
        super().__init__()
        self.norm, self.qkv, self.out = nn.GroupNorm(4, width), nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.dropout = function

    def forward(self, x):
        q, k, v = self.qkv(self.norm(x.transpose(1, 2)).transpose(1, 2)).chunk(3, -1)
        weights = self.dropout((q @ k.transpose(1, 2) / 8).float().softmax(-1).to(x.dtype), 0.1)
        return x + self.dropout(self.out(weights @ v), 0.1)


class Calls(nn.Module):
    """Two layers around a function of this module."""

    def __init__(self, function, width=64):
        super().__init__()
        self.one, self.two, self.function = nn.Linear(64, width), nn.Linear(64, 64), function

    def forward(self, x):
        return self.function(self, x)


def chain(kind, count):
    return nn.Sequential(*(kind() for _ in range(count)))


def made(name, place="cpu"):
    """Returns a model in training mode, and its input."""
    kind, shape = MODELS[name]
    return kind().train().to(place), torch.randn(*shape).to(place)


def nothing():
    pass


def step(model, x, seed=3, between=nothing):
    """Returns the loss and the gradients of one step."""
    torch.manual_seed(seed)
    model.zero_grad(set_to_none=True)
    loss = model(x).square().mean()
    between()
    loss.backward()
    return [loss.detach(), *grads_of(model)]


def grads_of(model):
    return [one.grad.clone() for one in model.parameters() if one.grad is not None]


def spilling(model, device, **options):
    """spill_activations() for small tensors."""
    return st.spill_activations(model, device=device, least=1, **options)


def away(spilled):
    """Waits for the copies under way, so that the tensors that leave have gone."""
    spilled._pending.forward_ends()
    for one in spilled._devices.values():
        one.collect(one.stream(), all=True)


def nothing_is_left(spilled):
    """Whether no saved tensor is left, on the device or in host memory."""
    stats, recompute = spilled.stats(), spilled._pack.recompute
    return (
        stats.kept_bytes == stats.leaving_bytes == stats.away_bytes == 0
        and all(not one.saved and not one._recent and not one._on_host for one in spilled._devices.values())
        and (recompute is None or not recompute._recent)
    )


def check(device, program, model=None, steps=2, seed=3, **options):
    """Compares what a program gives with and without spilling, and returns the scope. The program calls its argument
    before its backward, so that the tensors have left by then in every other run.
    """

    def run(between):
        torch.manual_seed(seed)
        return program(between)

    want = run(nothing)
    with spilling(model, device, **options) as spilled:
        for number in range(steps):
            got = run(nothing if number % 2 else lambda: away(spilled))
            assert equal(got, want) and nothing_is_left(spilled)
    return spilled


def check_model(device, model, x, **options):
    return check(device, lambda between: step(model, x, between=between), model, **options)
