"""A server that generates text and a trainer take turns on one device: each releases its memory before the other takes
it. Shows the memory of the device at each turn, and compares bit by bit: what the server generates before and after,
and what the trainer learns, with one that has the memory for itself.

colocate.py [DEVICE]     the CPU if no device is given; cuda:0 is the first GPU
"""

# mypy: disable-error-code="import-not-found,misc,no-untyped-call,no-untyped-def"
from __future__ import annotations

import argparse
import contextlib
import copy
import ctypes
import math
import sys
import time
from collections.abc import Iterator, Sequence

import torch
from torch import nn

import libstagehand as sh
import libstagehand.torch as st

MIB = 1 << 20
LETTERS = "\n abcdefghijklmnopqrstuvwxyz.,?!"


class Layer(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.expand, self.reduce = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor, cache: torch.Tensor | None, begin: int) -> torch.Tensor:
        q, k, v = self.qkv(self.norm1(x)).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        if cache is not None:
            end = begin + x.shape[1]
            cache[0, :, :, begin:end], cache[1, :, :, begin:end] = k, v
            k, v = cache[0, :, :, :end], cache[1, :, :, :end]
        mixed = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=x.shape[1] > 1)
        x = x + self.out(mixed.transpose(1, 2).flatten(-2))
        return x + self.reduce(nn.functional.gelu(self.expand(self.norm2(x))))


class Transformer(nn.Module):
    def __init__(self, layers: int, width: int, heads: int, length: int) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(len(LETTERS), width), nn.Embedding(length, width)
        self.layers = nn.ModuleList(Layer(width, heads) for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, len(LETTERS))

    def forward(self, tokens: torch.Tensor, cache: torch.Tensor | None = None, begin: int = 0) -> torch.Tensor:
        places = torch.arange(begin, begin + tokens.shape[1], device=tokens.device)
        x = self.tokens(tokens) + self.places(places)
        for i, layer in enumerate(self.layers):
            x = layer(x, None if cache is None else cache[i], begin)
        return self.head(self.norm(x))


class Memory:
    """Device memory by tags. A tag leaves the device as a whole, and comes back at the same addresses."""

    def __init__(self, device: sh.Device) -> None:
        self.device = device

    def empty(self, like: torch.Tensor, tag: str, contents: str) -> torch.Tensor:
        raise NotImplementedError

    def release(self, tags: Sequence[str]) -> sh.OccupancyChange:
        return self.device.pause(tags)

    def resume(self, tags: Sequence[str]) -> sh.OccupancyChange:
        return self.device.resume(tags)

    def used(self) -> int:
        return self.device.memory().used_bytes


class HostMemory(Memory):
    """The host in the place of a GPU. Its device memory is memory of the process."""

    def __init__(self, device: sh.Device) -> None:
        super().__init__(device)
        self._allocations: list[sh.Allocation] = []

    def empty(self, like: torch.Tensor, tag: str, contents: str) -> torch.Tensor:
        memory = self.device.alloc(like.nbytes, tag=tag, contents=sh.Contents[contents.upper()])
        self._allocations.append(memory)
        buffer = (ctypes.c_uint8 * memory.bytes).from_address(memory.address)
        return torch.frombuffer(buffer, dtype=like.dtype).view(like.shape)


class GpuMemory(Memory):
    """Pools of PyTorch."""

    def empty(self, like: torch.Tensor, tag: str, contents: str) -> torch.Tensor:
        with st.pausable(tag, self.device, contents=contents):
            return torch.empty(like.shape, dtype=like.dtype, device=self.device.name)

    def release(self, tags: Sequence[str]) -> sh.OccupancyChange:
        torch.cuda.empty_cache()  # what a turn has used for a while
        unused = [one for tag in tags for one in st.pausable(tag, self.device, contents=CONTENTS[tag]).unused()]
        return self.device.pause(tags, unused=unused)

    def used(self) -> int:
        """What the driver reports, with what others use."""
        torch.cuda.synchronize()
        free, total = torch.cuda.mem_get_info(self.device.ordinal)
        return int(total - free)


# The cache of the server is worth nothing after a turn.
CONTENTS = {"server": "stage", "cache": "drop", "trainer": "stage"}


def put(model: nn.Module, memory: Memory, tag: str) -> None:
    """Moves the weights of a model to memory of a tag."""
    for weight in model.parameters():
        moved = memory.empty(weight, tag, CONTENTS[tag])
        weight.data = moved.copy_(weight.detach())


class Server:
    tags = ("server", "cache")

    def __init__(self, model: Transformer, memory: Memory, prompts: torch.Tensor, length: int) -> None:
        self.model, self.prompts, self.length = model.requires_grad_(False), prompts, length
        put(model, memory, "server")
        heads = model.layers[0].heads
        width = model.tokens.embedding_dim
        shape = (len(model.layers), 2, len(prompts), heads, length, width // heads)
        self.cache = memory.empty(torch.empty(shape, device="meta"), "cache", CONTENTS["cache"])

    def generate(self) -> torch.Tensor:
        """Returns the prompts, each with the text that the model thinks most likely."""
        with torch.no_grad():
            text, begin = self.prompts, 0
            while text.shape[1] < self.length:
                scores = self.model(text[:, begin:], self.cache, begin)[:, -1:]
                begin, text = text.shape[1], torch.cat([text, scores.argmax(-1)], 1)
            return text.clone()


class Trainer:
    tags = ("trainer",)

    def __init__(self, model: Transformer, memory: Memory | None, rate: float = 0.05) -> None:
        self.model, self.rate = model, rate
        if memory is not None:
            put(model, memory, "trainer")
        # The state of the optimizer leaves with the weights.
        places = [w if memory is None else memory.empty(w, "trainer", "stage") for w in model.parameters()]
        self.speeds = [torch.zeros_like(w) if memory is None else w.zero_() for w in places]

    def train(self, text: torch.Tensor) -> float:
        """Takes a step with momentum towards a text. Returns the loss."""
        scores = self.model(text[:, :-1])
        loss = nn.functional.cross_entropy(scores.flatten(0, 1), text[:, 1:].flatten())
        loss.backward()
        with torch.no_grad():
            for weight, speed in zip(self.model.parameters(), self.speeds):
                weight.sub_(speed.mul_(0.9).add_(weight.grad), alpha=self.rate)
                weight.grad = None
        return float(loss.detach())


class Turns:
    """Gives the device to one of them at a time, and shows each turn."""

    def __init__(self, memory: Memory) -> None:
        self.memory = memory
        print(
            f"{'turn of':10} {'memory':>12} {'brought':>12} {'released':>12} {'copied':>12} {'left':>12} {'time':>10}"
        )

    @contextlib.contextmanager
    def turn(self, one: Server | Trainer) -> Iterator[None]:
        begin = time.perf_counter()
        came = self.memory.resume(one.tags)
        seconds = time.perf_counter() - begin
        held = self.memory.used()
        yield
        begin = time.perf_counter()
        gone = self.memory.release(one.tags)
        seconds += time.perf_counter() - begin
        sizes = (held, came.device_bytes, gone.device_bytes, gone.copied_bytes, self.memory.used())
        figures = " ".join(f"{size / MIB:8.1f} MiB" for size in sizes)
        print(f"{type(one).__name__.lower():10} {figures} {seconds * 1e3:7.1f} ms")


def encode(texts: Sequence[str]) -> torch.Tensor:
    return torch.tensor([[LETTERS.index(letter) for letter in text] for text in texts])


def decode(tokens: torch.Tensor) -> str:
    return "".join(LETTERS[int(token)] for token in tokens)


def open_memory(name: str, model: nn.Module) -> Memory:
    """Opens the device. On the host its budget has no room for two models of this size or more."""
    if name != "cpu":
        return GpuMemory(sh.Device(name))
    weights = sum(math.ceil(w.nbytes / 512) * 512 for w in model.parameters())
    return HostMemory(sh.Device("host", budget_bytes=2 * weights + 8 * MIB))


def take_weights(server: Server, trainer: Trainer, device: sh.Device) -> None:
    """The server takes the weights of the trainer, which is away: host memory has them."""
    for mine, others in zip(server.model.parameters(), trainer.model.parameters()):
        contents = device.read_released(others.data_ptr(), others.nbytes)
        mine.copy_(torch.frombuffer(contents, dtype=mine.dtype).view(mine.shape))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("device", nargs="?", default="cpu")
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--length", type=int, default=64, help="letters of a text")
    parser.add_argument("--turns", type=int, default=3, help="of each")
    parser.add_argument("--steps", type=int, default=8, help="of the trainer in a turn")
    options = parser.parse_args()
    if options.width % 4 or options.length < 24:
        parser.error("--width is a multiple of 4, and --length is at least 24")

    torch.manual_seed(1)
    shape = (options.layers, options.width, 4, options.length)
    served, trained = Transformer(*shape), Transformer(*shape)
    alone = copy.deepcopy(trained)
    texts = ["two models share a ", "one device has room", "the server sleeps, ", "the trainer wakes. "]
    prompts = encode(texts)
    lesson = encode([(text + "they take turns. " * options.length)[: options.length] for text in texts])
    lesson = lesson.to(options.device)
    memory = open_memory(options.device, served)
    server = Server(served, memory, prompts.to(options.device), options.length)
    first = server.generate()
    memory.release(server.tags)
    trainer = Trainer(trained, memory)
    memory.release(trainer.tags)

    turns, same, losses = Turns(memory), True, []
    for _ in range(options.turns):
        with turns.turn(server):
            same = same and torch.equal(server.generate(), first)
        with turns.turn(trainer):
            losses += [trainer.train(lesson) for _ in range(options.steps)]
    with turns.turn(server):
        take_weights(server, trainer, memory.device)
        learned = server.generate()

    # With memory of its own, all the time.
    reference = Trainer(alone.to(options.device), None)
    wanted_losses = [reference.train(lesson) for _ in losses]
    with turns.turn(server):
        server.model = reference.model.requires_grad_(False)
        wanted = server.generate()

    print("\nloss ", " ".join(f"{loss:.4f}" for loss in losses))
    print("text ", repr(decode(first[0])), "\nthen ", repr(decode(learned[0])))
    checks = {
        "the server generates the same before and after": same,
        "the trainer learns what one learns that has the memory for itself": losses == wanted_losses,
        "the server generates the same with the weights of the trainer": torch.equal(learned, wanted),
    }
    for what, holds in checks.items():
        print(f"{what}: {'yes, bit by bit' if holds else 'NO'}")
    return int(not all(checks.values()))


if __name__ == "__main__":
    sys.exit(main())
