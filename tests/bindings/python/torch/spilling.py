"""What the tests of spill_activations() share: models, and the gradients of a step."""

import torch
from torch import nn

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


def made(name):
    """Returns a model in training mode, and its input."""
    kind, shape = MODELS[name]
    return kind().train(), torch.randn(*shape)


def step(model, x, seed=3, between=lambda: None):
    """Returns the loss and the gradients of one step."""
    torch.manual_seed(seed)
    model.zero_grad(set_to_none=True)
    loss = model(x).square().mean()
    between()
    loss.backward()
    return [loss.detach(), *(one.grad.clone() for one in model.parameters() if one.grad is not None)]


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
    stats = spilled.stats()
    return stats.kept_bytes == stats.leaving_bytes == stats.away_bytes == 0 and all(
        not one.saved and not one._recent and not one._on_host for one in spilled._devices.values()
    )
