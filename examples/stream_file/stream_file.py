"""Streams a safetensors file through a quarter of its bytes, and compares every byte.

    stream_file.py FILE [DEVICE]

The same program as stream_file.c, stream_file.cpp and stream_file.rs.
"""

import json
import sys
from typing import BinaryIO

import libstagehand as sh

STEPS = 3

# The place in the file, the number of bytes and the name.
Tensor = tuple[int, int, str]


def read_tensors(path: str) -> list[Tensor]:
    """The place of each tensor in the file, its number of bytes and its name, in the order of the file."""
    with open(path, "rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if not 0 < length <= 100_000_000:
            raise ValueError(f"{path}: it is not a safetensors file")
        text = file.read(length)
    if len(text) < length:
        raise ValueError(f"{path}: its header is incomplete")
    try:
        header = json.loads(text)
    except ValueError as error:
        raise ValueError(f"{path}: its header is not JSON") from error
    tensors = []
    for name, entry in header.items() if isinstance(header, dict) else ():
        if name == "__metadata__":
            continue
        match entry:
            case {"data_offsets": [int(begin), int(end)]} if 0 <= begin <= end:
                if end > begin:
                    tensors.append((8 + length + begin, end - begin, name))
            case _:
                raise ValueError(f"{path}: a tensor has no valid data_offsets")
    if not tensors:
        raise ValueError(f"{path}: it has no tensors")
    return sorted(tensors)


def split(tensors: list[Tensor], most: int) -> list[Tensor]:
    """Splits tensors that are too large for the budget. A block is used as a whole, so the largest block has to fit."""
    return [(offset + at, min(most, size - at), name) for offset, size, name in tensors for at in range(0, size, most)]


def register_model(model: sh.Runtime, path: str, pieces: list[Tensor]) -> list[sh.Block]:
    """Registers each piece as a block whose bytes come from the file."""
    return model.register_blocks(sh.BlockDesc(sh.FileRange(path, offset, size), name) for offset, size, name in pieces)


def step(model: sh.Runtime, blocks: list[sh.Block], file: BinaryIO, pieces: list[Tensor]) -> int:
    """One pass over the model. It compares every byte with the file instead of computing."""
    total = 0
    with model.step():
        for block, (offset, size, name) in zip(blocks, pieces):
            with model.acquire(block) as view:
                there = view.read()
            file.seek(offset)
            if there != file.read(size):
                raise ValueError(f"{name}: its bytes differ from the file")
            total += size
    return total


def main(path: str, device_name: str = "host") -> None:
    tensors = read_tensors(path)
    model_bytes = sum(size for _, size, _ in tensors)
    budget = model_bytes // 4
    pieces = split(tensors, budget // 4 + 1)

    with sh.Device(device_name, budget_bytes=budget) as device, sh.Runtime(device) as model, open(path, "rb") as file:
        blocks = register_model(model, path, pieces)
        print(f"{len(tensors)} tensors of {model_bytes} bytes, in {len(blocks)} blocks, through {budget} bytes")
        for i in range(STEPS):
            print(f"step {i}: {step(model, blocks, file, pieces)} bytes equal the file")
        peak, copied = device.memory().peak_bytes, model.stats().bytes_to_device
        print(f"the device held at most {peak} bytes, and {copied} bytes were copied to it")
        if peak > budget:
            raise ValueError("the device: it held more than the budget")
        if copied < model_bytes + (STEPS - 1) * (model_bytes - budget):
            raise ValueError("the model: it did not stream")


if __name__ == "__main__":
    if len(sys.argv) not in (2, 3):
        sys.exit("usage: stream_file.py FILE [DEVICE]")
    try:
        main(*sys.argv[1:])
    except (sh.Error, OSError, ValueError) as error:
        sys.exit(f"stream_file: {error}")
