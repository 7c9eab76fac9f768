#!/usr/bin/env python3
"""Writes the fuzz targets' seeds, tests/data/fuzz/{safetensors,gguf,index,codec}. Run it again if a format grows."""

import json
import pathlib
import struct


def tensor(dtype, shape, begin, end):
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


def safetensors_seeds():
    packed_description = {"version": 1, "tensors": {"a.0.w": {"dtype": "BF16", "shape": [7, 8]}}}
    headers = {
        "llama": (
            {
                "__metadata__": {"format": "pt"},
                "lm_head.weight": tensor("BF16", [4, 2], 0, 16),
                "model.embed_tokens.weight": tensor("BF16", [4, 2], 16, 32),
                "model.layers.0.mlp.up_proj.weight": tensor("F32", [2, 2], 32, 48),
                "model.layers.1.mlp.up_proj.weight": tensor("F32", [2, 2], 48, 64),
                "model.norm.weight": tensor("F32", [2], 64, 72),
            },
            72,
        ),
        "scalars": ({"a": tensor("I64", [], 0, 8), "b": tensor("BOOL", [0, 7], 8, 8)}, 8),
        "bits": ({"f4": tensor("F4", [2, 3], 0, 3), "f6": tensor("F6_E2M3", [4], 3, 6), "x": {"extra": [[{}]]}}, 6),
        "split": ({"h.0.big": tensor("U8", [20000], 0, 20000), "h.0.tiny": tensor("U8", [3], 20000, 20003)}, 20003),
        "overlap": ({"a": tensor("U8", [4], 0, 4), "b": tensor("U8", [4], 2, 6)}, 6),
        "overflow": ({"a": tensor("F64", [2**62, 2**62], 0, 2**64 - 1)}, 4),
        "empty": ({}, 0),
        "packed": (
            {
                "__metadata__": {"stagehand.packed": json.dumps(packed_description)},
                "a.0.w": tensor("U8", [80], 0, 80),
                "a.1.w": tensor("U8", [3], 80, 83),
            },
            83,
        ),
    }
    for name, (header, data_bytes) in headers.items():
        text = json.dumps(header, separators=(",", ":")).encode()
        yield name, b"\x01" + struct.pack("<H", data_bytes) + text
        if data_bytes < 100:
            yield name + "_file", b"\x00" + struct.pack("<Q", len(text)) + text + bytes(data_bytes)
    text = json.dumps({**headers["packed"][0], "a.1.w": tensor("U8", [0], 80, 80)}, separators=(",", ":")).encode()
    head = b"SHPK" + struct.pack("<HBBQQII", 2, 1, 0, 112, 80, 32 * 8192, 1)
    yield "packed_head_file", b"\x00" + struct.pack("<Q", len(text)) + text + head.ljust(80, b"\0")
    yield "deep", b"\x01\x00\x00" + b"[" * 200
    yield "duplicate", b'\x01\x00\x00{"a":{"dtype":"U8","shape":[0],"data_offsets":[0,0]},"a":{}}'
    yield "length_lies", b"\x00" + struct.pack("<Q", 2**63) + b"{}"


def text(value):
    return struct.pack("<Q", len(value)) + value


def gguf(metadata, tensors, data_bytes, version=3, alignment=32):
    out = b"GGUF" + struct.pack("<IQQ", version, len(tensors), len(metadata))
    for key, kind, value in metadata:
        out += text(key) + struct.pack("<I", kind) + value
    for name, dimensions, kind, offset in tensors:
        out += text(name) + struct.pack("<I", len(dimensions)) + struct.pack("<%dQ" % len(dimensions), *dimensions)
        out += struct.pack("<IQ", kind, offset)
    return out + bytes(-len(out) % alignment) + bytes(data_bytes)


def gguf_seeds():
    string, array, u8, u16, u32, f32 = 8, 9, 0, 2, 4, 6
    words = struct.pack("<IQ", string, 3) + text(b"<s>") + text(b"a") + text(b"")
    metadata = [
        (b"general.architecture", string, text(b"llama")),
        (b"llama.block_count", u32, struct.pack("<I", 2)),
        (b"tokenizer.ggml.tokens", array, words),
        (b"nested", array, struct.pack("<IQ", array, 1) + struct.pack("<IQ", u8, 2) + b"xy"),
        (b"scale", f32, struct.pack("<f", 1.5)),
    ]
    tensors = [
        (b"token_embd.weight", (32, 2), 2, 0),
        (b"blk.0.attn_q.weight", (4, 2), 0, 64),
        (b"blk.1.attn_q.weight", (4, 2), 1, 96),
        (b"output_norm.weight", (4,), 0, 128),
    ]
    yield "llama", gguf(metadata, tensors, 144)
    yield "version2", gguf(metadata[:2], tensors[:1], 36, version=2)
    yield "version1", gguf([], [], 0, version=1)
    yield "big_endian", gguf([], [], 0, version=0x03000000)
    yield "aligned", gguf([(b"general.alignment", u32, struct.pack("<I", 64))], [(b"x", (2,), 0, 0)], 8, alignment=64)
    yield "bad_alignment", gguf([(b"general.alignment", u32, struct.pack("<I", 48))], [], 0)
    yield "split", gguf([(b"split.no", u16, b"\0\0"), (b"split.count", u16, b"\2\0")], [(b"x", (2,), 0, 0)], 8)
    yield "k_quant", gguf([], [(b"x", (256, 1, 2, 1), 12, 0)], 288)
    yield "large", gguf([], [(b"blk.0.x", (5000,), 24, 0), (b"blk.0.y", (300,), 24, 5024)], 5324)
    yield "counts_lie", b"GGUF" + struct.pack("<IQQ", 3, 2**60, 2**60)


def index_seeds():
    shards = ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"]
    good = {"metadata": {"total_size": 24}, "weight_map": {"a.0.w": shards[0], "b": shards[1], "c": shards[0]}}
    yield "good", json.dumps(good, indent=2).encode()
    yield "subfolder", b'{"weight_map":{"a":"sub/m.safetensors"}}'
    yield "above", b'{"weight_map":{"a":"../m.safetensors"}}'
    yield "absolute", b'{"weight_map":{"a":"/m.safetensors"}}'
    yield "twice", b'{"weight_map":{"a":"m","a":"n"}}'
    yield "nul", b'{"weight_map":{"a":"m\\u0000"}}'
    yield "kinds", b'{"metadata":[1,-2,3.5,null,true,[[{}]]],"weight_map":{"a":1}}'
    yield "deep", b'{"metadata":' + b"[" * 200


def tile(kind, table, escapes, rest):
    out = bytes(table + [0] * (7 - len(table))) + struct.pack("<BII", kind, escapes, 0) + rest
    return out + bytes(-len(out) % 16)


def frame(form, contents, tiles):
    """Without checksums, which the target computes."""
    one = chunk(tiles) if tiles else b""
    index = struct.pack("<II8x", 80 // 16, 0) if tiles else b""
    size = 64 + len(index) + len(one)
    header = b"SHPK" + struct.pack("<HBBQQIIQ24x", 2, form, 0, contents, size, 262144, bool(tiles), 0)
    return header + index + one


def chunk(tiles):
    return struct.pack("<32H", *(len(one) // 16 for one in tiles), *[0] * (32 - len(tiles))) + b"".join(tiles)


def codec_seeds():
    """The first byte is what the rest is: 0 a frame, 1 a tile, 2 contents, 3 a chunk."""
    coded = tile(1, [120, 119], 1, bytes(12) + bytes(32) + b"\x05")
    coded = coded[:16] + b"\x02\0\0\0" * 3 + coded[28:]  # the second of 32 elements escapes
    raw = tile(0, [], 0, bytes(range(64)))
    yield "bf16", b"\0" + frame(1, 64, [coded])
    yield "raw", b"\0" + frame(1, 64, [raw])
    yield "two_tiles", b"\0" + frame(4, 8192 + 32, [tile(0, [], 0, bytes(8192)), tile(0, [], 0, bytes(32))])
    yield "empty", b"\0" + frame(3, 0, [])
    yield "short", b"\0" + frame(1, 64, [coded])[:70]
    yield "chunk", bytes([3, 1, 0, 31]) + chunk([coded])
    for form in range(1, 6):
        yield f"tile{form}", bytes([1, form, 31]) + coded
        yield f"contents{form}", bytes([2, form]) + bytes(range(256)) + bytes(64)


def main():
    folder = pathlib.Path(__file__).resolve().parent.parent / "data" / "fuzz"
    kinds = {"safetensors": safetensors_seeds, "gguf": gguf_seeds, "index": index_seeds, "codec": codec_seeds}
    for kind, make in kinds.items():
        (folder / kind).mkdir(parents=True, exist_ok=True)
        for name, content in make():
            (folder / kind / name).write_bytes(content)


if __name__ == "__main__":
    main()
