"""What the allocator of PyTorch says of its memory."""

from __future__ import annotations

from typing import Any


def unused_ranges(segments: list[dict[str, Any]]) -> list[tuple[int, int]]:
    """Returns the addresses and sizes of the parts of segments that no tensor uses. Neighbours are one range.
    `segments` is from torch.cuda.memory_snapshot().
    """
    ranges: list[tuple[int, int]] = []
    for segment in sorted(segments, key=lambda one: int(one["address"])):
        address = int(segment["address"])
        for block in segment["blocks"]:
            size = int(block["size"])
            if block["state"] != "active_allocated":
                if ranges and sum(ranges[-1]) == address:
                    ranges[-1] = ranges[-1][0], ranges[-1][1] + size
                else:
                    ranges.append((address, size))
            address += size
    return ranges
