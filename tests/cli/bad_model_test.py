"""Invalid models give an exit code and a message that names the file and the field, and never a signal."""

import json
import os
import struct

import harness
import model_files
from broken_files import BROKEN
from harness import CommandTest, MODEL


def header(tensors):
    return json.dumps(tensors).encode()


def tensor(dtype="U8", shape=(16,), offsets=(0, 16)):
    return {"dtype": dtype, "shape": list(shape), "data_offsets": list(offsets)}


class BadModelTest(CommandTest):
    def assert_refused(self, path, *says):
        for subcommand in (
            ["plan", path, "--budget", "1MiB", "--bandwidth", "1GB"],
            ["run", path, "--budget", "1MiB", "--steps", "1", "--device", "host", "--json"],
        ):
            self.refuse(MODEL, *subcommand, says=says)

    def file(self, head, data=b"\0" * 16, header_length=None, name="bad.safetensors"):
        return model_files.write_raw_safetensors(self.folder / name, head, data, header_length)

    def test_what_is_no_file(self):
        self.assert_refused("absent.safetensors", "absent.safetensors")
        (self.folder / "folder").mkdir()
        self.assert_refused("folder", "folder")
        os.mkfifo(self.folder / "pipe.safetensors")
        self.assert_refused("pipe.safetensors", "pipe.safetensors")
        self.assert_refused("/dev/zero", "/dev/zero")
        (self.folder / "loop").symlink_to("loop")
        self.assert_refused("loop", "loop")

    def test_truncated(self):
        whole = self.layered_model("whole.safetensors").read_bytes()
        for length in (4, 8, 20, 300, len(whole) - 1):
            with self.subTest(length=length):
                (self.folder / "cut.safetensors").write_bytes(whole[:length])
                self.assert_refused("cut.safetensors", "cut.safetensors")

    def test_header_length_lies(self):
        head = header({"a": tensor()})
        for length in (0, 1, len(head) - 1, len(head) + 1000, 1 << 40, (1 << 64) - 1):
            with self.subTest(length=length):
                self.assert_refused(self.file(head, header_length=length), "bad.safetensors", "header")

    def test_broken_files(self):
        for name, (content, says) in BROKEN.items():
            with self.subTest(name):
                (self.folder / "bad.safetensors").write_bytes(content)
                self.assert_refused("bad.safetensors", "bad.safetensors", says)

    def test_deep_json(self):
        self.assert_refused(self.file(b"[" * 100000), "bad.safetensors")
        self.assert_refused(self.file(b'{"a": ' + b"[" * 100000), "bad.safetensors")
        self.assert_refused(self.file(b'{"__metadata__": ' + b'{"a":' * 100000), "bad.safetensors")

    def test_name_with_control_characters_is_made_harmless(self):
        self.file(header({"a\n\x1b[31mred": tensor("F17")}))
        line = self.refuse(MODEL, "plan", "bad.safetensors", "--budget", "1MiB", "--bandwidth", "1GB")
        self.assertNotIn("\x1b", line)

    def test_shards(self):
        index = model_files.write_sharded(self.folder / "shards", model_files.layered_tensors(4, 1 << 16, 1 << 16), 3)
        whole = json.loads((self.folder / index).read_text())
        missing = json.loads(json.dumps(whole))
        first = next(iter(missing["weight_map"]))
        missing["weight_map"][first] = "model-00009-of-00003.safetensors"
        (self.folder / index).write_text(json.dumps(missing))
        self.assert_refused(index, "model-00009-of-00003.safetensors")

        text = json.dumps(whole)
        entry = json.dumps(first)
        doubled = text.replace(entry, entry + ': "model-00002-of-00003.safetensors", ' + entry, 1)
        (self.folder / index).write_text(doubled)
        self.assert_refused(index, "index.json", first)

        outside = json.loads(json.dumps(whole))
        outside["weight_map"][first] = "../whole.safetensors"
        (self.folder / index).write_text(json.dumps(outside))
        self.assert_refused(index, "index.json")

        (self.folder / index).write_text(text)
        (self.folder / "shards/model-00002-of-00003.safetensors").unlink()
        self.assert_refused("shards", "model-00002-of-00003.safetensors")

    def test_gguf(self):
        good = model_files.write_gguf(self.folder / "good.gguf", model_files.layered_gguf_tensors(2)).read_bytes()
        for name, content in {
            "cut header": good[:40],
            "cut data": good[:-100],
            "version": good[:4] + struct.pack("<I", 99) + good[8:],
            "tensor count": good[:8] + struct.pack("<Q", 1 << 60) + good[16:],
            "pair count": good[:16] + struct.pack("<Q", 1 << 60) + good[24:],
            "type": good.replace(struct.pack("<IQQI", 2, 64, 512, 0), struct.pack("<IQQI", 2, 64, 512, 999)),
            "dimensions": good.replace(struct.pack("<IQQ", 2, 64, 512), struct.pack("<IQQ", 2, 1 << 62, 1 << 62)),
        }.items():
            with self.subTest(name):
                self.assertNotEqual(content, good)
                (self.folder / "bad.gguf").write_bytes(content)
                self.assert_refused("bad.gguf", "bad.gguf")

    def test_model_without_bytes(self):
        self.assert_refused(self.file(header({"a": tensor(shape=(0,), offsets=(0, 0))}), b""), "bad.safetensors")


if __name__ == "__main__":
    harness.main()
