"""The example in one language: what it prints for a file made here, and for a real model where ./dev has downloaded one
or STAGEHAND_MINILM_DIR names it, and what it says of files that are none. Skipped where a GPU is asked for and there is
none.

    stream_file_test.py [--device DEVICE] PROGRAM...
"""

import json
import os
import pathlib
import random
import re
import struct
import tempfile

import sample
from sample import device


def run(*rest, expect=0):
    done = sample.run(sample.words, *rest)
    assert done.returncode == expect, (done.returncode, done.stdout, done.stderr)
    return done


def make(path, sizes):
    """A model whose tensors do not stand in the header as they do in the file; one is empty, one is larger than its
    share of the budget.
    """
    source, header, data = random.Random(1), {"empty": {"dtype": "U8", "shape": [0], "data_offsets": [0, 0]}}, b""
    for i, size in enumerate(sizes):
        header[f"layer.{i}.weight"] = {"dtype": "U8", "shape": [size], "data_offsets": [len(data), len(data) + size]}
        data += source.randbytes(size)
    text = json.dumps({"__metadata__": {"format": "pt"}} | dict(reversed(header.items()))).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)


def sizes_for(device):
    """Larger ones for GPUs, whose pages are larger, and the smallest budget with them."""
    sizes = [(300_000 if device == "host" else 8_000_000) + 7_777 * (i % 4) for i in range(20)]
    sizes[7] *= 9
    return sizes


def streams(model, sizes):
    """Every byte is the file's in each step, and no more than a quarter of them is there at once."""
    total, most = sum(sizes), sum(sizes) // 4 // 4 + 1
    lines = run(model, device).stdout.splitlines()
    blocks = sum(-(-size // most) for size in sizes)
    wanted = [f"{len(sizes)} tensors of {total} bytes, in {blocks} blocks, through {total // 4} bytes"]
    wanted += [f"step {i}: {total} bytes equal the file" for i in range(3)]
    assert lines[:-1] == wanted and blocks > len(sizes), "\n".join(lines)
    peak, copied = map(
        int, re.fullmatch(r"the device held at most (\d+) bytes, and (\d+) bytes were copied to it", lines[-1]).groups()
    )
    assert 0 < peak <= total // 4 and copied >= total + 2 * (total - total // 4), lines[-1]


def tensors_of(path):
    with path.open("rb") as file:
        header = json.loads(file.read(struct.unpack("<Q", file.read(8))[0]))
    return [
        entry["data_offsets"][1] - entry["data_offsets"][0] for name, entry in header.items() if name != "__metadata__"
    ]


with tempfile.TemporaryDirectory(prefix="stagehand-stream-file-") as folder:
    model, broken = pathlib.Path(folder, "model.safetensors"), pathlib.Path(folder, "broken.safetensors")
    if device != "host":
        make(model, [1000])
        assert "SH_ERROR_BUDGET" in run(model, device, expect=1).stderr  # less than a page
    sizes = sizes_for(device)
    make(model, sizes)
    streams(model, sizes)
    if device == "host":
        root = pathlib.Path(__file__).parents[3]
        real = pathlib.Path(
            os.environ.get("STAGEHAND_MINILM_DIR") or root / ".cache/models/all-minilm-l6-v2", "model.safetensors"
        )
        if real.exists():
            streams(real, tensors_of(real))
    headers = [
        b"{]}",
        b"{}",
        b"[]",
        b"7",
        b'{"a": 1}',
        b'{"a": {}}',
        b'{"a": {"data_offsets": 7}}',
        b'{"a": {"data_offsets": [5]}}',
        b'{"a": {"data_offsets": ["x", "y"]}}',
        b'{"a": {"data_offsets": [9, 5]}}',
        b'{"a": {"data_offsets": [-5, 5]}}',
    ]
    for text in (
        b"",
        b"\xff" * 8,
        struct.pack("<Q", 50) + b"{}",
        *(struct.pack("<Q", len(header)) + header for header in headers),
    ):
        broken.write_bytes(text)
        assert re.match(rf"(stream_file: )?{re.escape(str(broken))}: ", run(broken, expect=1).stderr), text
    for rest in ((folder + "/absent",), (model, "nobody"), (), (1, 2, 3)):
        assert re.match(r"(stream_file|usage): ", run(*rest, expect=1).stderr)
print("as it should be")
