"""Files that are not what the format of safetensors says. The command and libstagehand.torch refuse all of them."""

import json
import struct


def entry(begin, end, shape=None, dtype="U8"):
    return {"dtype": dtype, "shape": [end - begin] if shape is None else shape, "data_offsets": [begin, end]}


def file(tensors, data_bytes, metadata=None, header=None):
    """A file of pairs of a name and an entry. Names may occur twice."""
    pairs = [("__metadata__", metadata)] * (metadata is not None) + tensors
    text = header or "{" + ",".join(f"{json.dumps(name)}:{json.dumps(what)}" for name, what in pairs) + "}"
    text += " " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text.encode() + bytes(data_bytes)


A, B = ("a", entry(0, 16)), ("b", entry(16, 32))
WHOLE = file([A, B], 32)

# By name: the bytes of the file, and a part of the error.
BROKEN = {
    "empty": (b"", "file: is empty"),
    "only a length": (struct.pack("<Q", 8), "header length: says 8, but only 0 bytes follow"),
    "text": (b"hello, this is no model at all", "header length: "),
    "length beyond the file": (struct.pack("<Q", 1 << 60) + b"{}", "header length: says 1152921504606846976"),
    "header that is an array": (file([], 0, header="[]"), "header: must be a JSON object, but is an array"),
    "cut header": (WHOLE[:40], "header length: "),
    "cut data": (WHOLE[:-1], "'b': data_offsets: end at 32, but the file holds 31 bytes of data"),
    "trailing bytes": (WHOLE + bytes(16), "data_offsets: end at 32, but the file holds 48 bytes of data"),
    "gap": (file([A, ("b", entry(32, 48))], 48), "'b': data_offsets: leave 16 bytes before them"),
    "gap at the front": (file([B], 32), "'b': data_offsets: leave 16 bytes before them"),
    "overlap": (file([A, ("b", entry(8, 24))], 24), "'b': data_offsets: overlap those of 'a'"),
    "the same bytes": (file([A, ("b", entry(0, 16))], 16), "'b': data_offsets: overlap those of 'a'"),
    "double name": (file([A, B, A], 32), "'a': is named twice in the header"),
    "double name with other bytes": (file([A, B, ("a", entry(32, 48))], 48), "'a': is named twice in the header"),
    "metadata that is no string": (file([A], 16, {"x": 1}), "__metadata__: 'x': must be a string, but is a number"),
    "metadata that is an array": (file([A], 16, []), "__metadata__: must be an object of strings"),
    "offsets that are fractions": (file([("a", entry(0, 16.0, [16]))], 16), "'a': data_offsets: must hold unsigned"),
    "negative offset": (file([("a", entry(-16, 0))], 16), "'a': data_offsets: must hold unsigned"),
    "huge offset": (file([("a", entry(2**64 - 16, 2**64))], 16), "'a': data_offsets: must hold unsigned"),
    "backwards": (file([("a", entry(16, 0, [16]))], 16), "'a': data_offsets: begin at 16, after their end at 0"),
    "range of another size": (file([("a", entry(0, 16, [8]))], 16), "'a': data_offsets: span 16 bytes"),
    "size that overflows": (file([("a", entry(0, 16, [1 << 62, 1 << 62]))], 16), "'a': shape: the number of elements"),
    "half a byte": (file([("a", entry(0, 8, [3, 5], "F4"))], 8), "'a': shape: the size is not a whole number of bytes"),
    "unknown type": (file([("a", entry(0, 16, dtype="F17"))], 16), "'a': dtype: is 'F17', which is not a known type"),
}
