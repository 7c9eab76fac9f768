"""Writes small model files by the rules of the formats alone."""

import json
import os
import random
import struct


def random_bytes(count, seed):
    return random.Random(seed).randbytes(count)


def safetensors_header(tensors, metadata=None):
    """The header for {name: (dtype, shape, bytes)} laid out one after the other."""
    header = {}
    if metadata is not None:
        header["__metadata__"] = metadata
    offset = 0
    for name, (dtype, shape, data) in tensors.items():
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [offset, offset + len(data)]}
        offset += len(data)
    return json.dumps(header).encode()


def write_raw_safetensors(path, header, data=b"", header_length=None):
    """A file of any header and data, right or wrong."""
    length = len(header) if header_length is None else header_length
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", length))
        file.write(header)
        file.write(data)
    return path


def write_safetensors(path, tensors, metadata=None):
    header = safetensors_header(tensors, metadata)
    # The format's own writers pad the header to eight bytes.
    header += b" " * (-len(header) % 8)
    return write_raw_safetensors(path, header, b"".join(data for _, _, data in tensors.values()))


def layered_tensors(layers, layer_bytes, table_bytes, seed=1):
    """A word table, some layers of two tensors each, and a small norm at the end."""
    tensors = {"embed.weight": ("U8", [table_bytes], random_bytes(table_bytes, seed))}
    for layer in range(layers):
        half = layer_bytes // 2
        for number, (part, count) in enumerate((("attn", half), ("mlp", layer_bytes - half))):
            data = random_bytes(count, seed * 1000 + layer * 2 + number)
            tensors[f"layers.{layer}.{part}.weight"] = ("U8", [count], data)
    tensors["norm.weight"] = ("F32", [16], random_bytes(64, seed + 77))
    return tensors


def write_sharded(folder, tensors, shards):
    """Writes the tensors to `shards` files in turn, and their index. Returns the path of the index."""
    os.makedirs(folder, exist_ok=True)
    names = [f"model-{i + 1:05}-of-{shards:05}.safetensors" for i in range(shards)]
    dealt = [{} for _ in range(shards)]
    weight_map = {}
    per_shard = -(-len(tensors) // shards)
    for number, (name, tensor) in enumerate(tensors.items()):
        shard = number // per_shard
        dealt[shard][name] = tensor
        weight_map[name] = names[shard]
    for name, part in zip(names, dealt):
        write_safetensors(os.path.join(folder, name), part)
    total = sum(len(data) for _, _, data in tensors.values())
    index = os.path.join(folder, "model.safetensors.index.json")
    with open(index, "w", encoding="utf-8") as file:
        json.dump({"metadata": {"total_size": total}, "weight_map": weight_map}, file)
    return index


GGUF_F32 = 0
GGUF_Q8_0 = 8


def _gguf_string(text):
    data = text.encode()
    return struct.pack("<Q", len(data)) + data


def write_gguf(path, tensors, alignment=32):
    """GGUF version 3 with {name: (type number, dimensions innermost first, bytes)}."""

    def key(name, value_type, value):
        return _gguf_string(name) + struct.pack("<I", value_type) + value

    pairs = [
        key("general.architecture", 8, _gguf_string("tiny")),
        key("general.alignment", 4, struct.pack("<I", alignment)),
    ]
    infos = b""
    data = b""
    for name, (number, dimensions, content) in tensors.items():
        data += b"\0" * (-len(data) % alignment)
        infos += _gguf_string(name) + struct.pack("<I", len(dimensions))
        infos += b"".join(struct.pack("<Q", size) for size in dimensions)
        infos += struct.pack("<IQ", number, len(data))
        data += content
    head = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(pairs)) + b"".join(pairs) + infos
    head += b"\0" * (-len(head) % alignment)
    with open(path, "wb") as file:
        file.write(head + data)
    return path


def layered_gguf_tensors(layers, seed=3):
    """A table in F32 and layers of which one tensor is F32 and one is Q8_0."""
    tensors = {"token_embd.weight": (GGUF_F32, [64, 512], random_bytes(64 * 512 * 4, seed))}
    for layer in range(layers):
        plain = random_bytes(128 * 64 * 4, seed + 2 * layer + 1)
        # 34 bytes for each 32 elements.
        packed = random_bytes(128 * 64 // 32 * 34, seed + 2 * layer + 2)
        tensors[f"blk.{layer}.attn_q.weight"] = (GGUF_F32, [128, 64], plain)
        tensors[f"blk.{layer}.ffn_up.weight"] = (GGUF_Q8_0, [128, 64], packed)
    tensors["output_norm.weight"] = (GGUF_F32, [64], random_bytes(256, seed + 99))
    return tensors
