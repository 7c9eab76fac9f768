"""Streams a safetensors file through a quarter of its bytes, then protects a block, reserves for the model, and lets a guest in.

    stream_file.py FILE [DEVICE]

The same program as stream_file.c and stream_file.cpp.
"""
import json
import sys

import libstagehand as sh

GUEST_BYTES = 1 << 20


def read_tensors(path: str) -> list[tuple[int, int, str]]:
    """Where each tensor lies in the file, how many bytes it has, and its name, in the file's order."""
    with open(path, "rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if not 0 < length <= 100_000_000:
            raise ValueError(f"{path}: it is no safetensors file")
        text = file.read(length)
    if len(text) < length:
        raise ValueError(f"{path}: its header is cut short")
    try:
        header = json.loads(text)
    except ValueError as error:
        raise ValueError(f"{path}: its header is no JSON") from error
    tensors = []
    for name, entry in header.items():
        if name != "__metadata__":
            begin, end = entry["data_offsets"]
            if end > begin:
                tensors.append((8 + length + begin, end - begin, name))
    if not tensors:
        raise ValueError(f"{path}: it has no tensors")
    return sorted(tensors)


def step(runtime: sh.Runtime, blocks: list[sh.Block]) -> int:
    """One pass over the model. In place of computing, it adds up all bytes."""
    total = 0
    with runtime.step():
        for block in blocks:
            with runtime.acquire(block) as view:
                total += sum(view.read())
    return total


def main(path: str, device_name: str = "host") -> None:
    tensors = read_tensors(path)
    model_bytes = sum(size for _, size, _ in tensors)
    model_budget = max(model_bytes // 4, 2 * max(size for _, size, _ in tensors))

    # Each tensor is a block, whose bytes come out of the file.
    with sh.Device(device_name, budget_bytes=model_budget + 2 * GUEST_BYTES) as device:
        with sh.Runtime(device, name="model", max_bytes=model_budget) as model, sh.Runtime(device, name="guest") as guest:
            blocks = model.register_blocks(sh.BlockDesc(sh.FileRange(path, offset, size), name) for offset, size, name in tensors)
            print(f"{len(blocks)} tensors of {model_bytes} bytes through {model_budget} bytes")
            for i in range(2):
                print(f"step {i}: the bytes add up to {step(model, blocks)}")

            # Protect: the first block stays on the device, whole, whatever the others need.
            with model.protect(blocks[:1]):
                model.plan()
                step(model, blocks)
                info = blocks[0].info()
                print(f"protected: {info.resident_bytes} of {info.bytes} bytes of {info.name} stay on the device")

            # Reserve and guest: another model comes for a while, and takes nothing of what this one streams with.
            guest_block = guest.register_block(b"\1" * GUEST_BYTES, name="weights")
            model.reserve_for_resident(priority=sh.ResidentPriority.PRIMARY)
            with model.as_guest(guest):
                print(f"guest: the bytes add up to {step(guest, [guest_block])}, the model's to {step(model, blocks)}")
            print(f"after the guest: it holds {guest.stats().held_bytes} bytes")
            model.release_reservation()


if __name__ == "__main__":
    if len(sys.argv) not in (2, 3):
        sys.exit("usage: stream_file.py FILE [DEVICE]")
    try:
        main(*sys.argv[1:])
    except (sh.Error, OSError, ValueError) as error:
        sys.exit(f"stream_file: {error}")
