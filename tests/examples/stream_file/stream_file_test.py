"""The example in one language: what it prints for a file made here, and what it says of files that are none.

    stream_file_test.py [--device DEVICE] PROGRAM...
"""
import json
import os
import pathlib
import random
import re
import struct
import subprocess
import sys
import tempfile

arguments = sys.argv[1:]
device = "host"
if arguments[0] == "--device":
    device, arguments = arguments[1], arguments[2:]


def run(*rest, expect=0):
    environment = {name: value for name, value in os.environ.items() if name not in ("STAGEHAND_LOG", "STAGEHAND_TRACE")}
    done = subprocess.run([*arguments, *map(str, rest)], capture_output=True, text=True, env=environment)
    if done.returncode == 77:
        print(done.stdout, end="")
        sys.exit(77)
    assert done.returncode == expect, (done.returncode, done.stdout, done.stderr)
    return done


def make(path):
    """A model whose tensors do not stand in the header as they do in the file; one is empty."""
    source, header, data = random.Random(1), {"empty": {"dtype": "U8", "shape": [0], "data_offsets": [0, 0]}}, b""
    for i in range(20):
        size = 300_000 + 7_777 * (i % 4)
        header[f"layer.{i}.weight"] = {"dtype": "U8", "shape": [size], "data_offsets": [len(data), len(data) + size]}
        data += source.randbytes(size)
    text = json.dumps({"__metadata__": {"format": "pt"}} | dict(reversed(header.items()))).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)
    return len(data), sum(data)


with tempfile.TemporaryDirectory(prefix="stagehand-stream-file-") as folder:
    model, broken = pathlib.Path(folder, "model.safetensors"), pathlib.Path(folder, "broken.safetensors")
    size, total = make(model)
    lines = run(model, device).stdout.splitlines()
    wanted = [
        f"20 tensors of {size} bytes through {size // 4} bytes",
        f"step 0: the bytes add up to {total}",
        f"step 1: the bytes add up to {total}",
        "protected: 300000 of 300000 bytes of layer.0.weight stay on the device",
        f"guest: the bytes add up to {1 << 20}, the model's to {total}",
        "after the guest: it holds 0 bytes",
    ]
    assert lines == wanted, "\n".join(lines)
    for text in (b"", b"\xff" * 8, struct.pack("<Q", 50) + b"{}", struct.pack("<Q", 2) + b"{}", struct.pack("<Q", 3) + b"{]}"):
        broken.write_bytes(text)
        assert re.match(rf"(stream_file: )?{re.escape(str(broken))}: ", run(broken, expect=1).stderr), text
    for rest in ((folder + "/absent",), (model, "nobody"), (), (1, 2, 3)):
        assert re.match(r"(stream_file|usage): ", run(*rest, expect=1).stderr)
print("as it should be")
