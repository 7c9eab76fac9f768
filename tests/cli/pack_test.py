"""`stagehand pack` and `stagehand unpack`: what comes back, what it takes, and which files are refused."""

import json
import os
import random
import resource
import signal
import struct

import harness
import model_files
from harness import INTERRUPTED, MODEL, OUTPUT, SUCCESS, USAGE, CommandTest

PACKED_KEY = "stagehand.packed"
SIM = ["--device", "sim", "--device-option", "page=4KiB"]


def normal(dtype, count, seed):
    """Elements like those of a model, by the rules of the formats alone."""
    numbers = random.Random(seed)
    values = [numbers.gauss(0, 0.02) for _ in range(count)]
    if dtype == "F32":
        return struct.pack(f"<{count}f", *values)
    if dtype == "F16":
        return struct.pack(f"<{count}e", *values)
    whole = struct.pack(f"<{count}f", *values)
    return b"".join(whole[at + 2 : at + 4] for at in range(0, len(whole), 4))  # the upper half is BF16


def read(path):
    """The metadata and {name: (dtype, shape, bytes)} of a safetensors file."""
    content = path.read_bytes()
    length = struct.unpack("<Q", content[:8])[0]
    header = json.loads(content[8 : 8 + length])
    metadata = header.pop("__metadata__", {})
    tensors = {}
    for name, tensor in header.items():
        begin, end = (8 + length + at for at in tensor["data_offsets"])
        tensors[name] = (tensor["dtype"], tensor["shape"], content[begin:end])
    return metadata, tensors


class PackTest(CommandTest):
    def setUp(self):
        super().setUp()
        self.tensors = {
            "norm.bias": ("F32", [3], struct.pack("<3f", 1, float("nan"), 1e-42)),
            "layers.0.weight": ("BF16", [300, 100], normal("BF16", 30000, 1)),
            "layers.1.weight": ("F16", [100, 100], normal("F16", 10000, 2)),
            "layers.2.weight": ("F32", [20000], normal("F32", 20000, 3)),
            "layers.3.weight": ("BF16", [20000], model_files.random_bytes(40000, 4)),
            "positions": ("I64", [2, 2], struct.pack("<4q", 1, 2, 3, 4)),
            "nothing": ("BF16", [0, 4], b""),
        }
        self.metadata = {"format": "pt", "zz \u00e9": "\u2028"}
        self.model = model_files.write_safetensors(self.folder / "model.safetensors", self.tensors, self.metadata)
        self.packed = self.folder / "packed.safetensors"

    def pack(self, *arguments):
        return self.succeed("pack", self.model, "-o", self.packed, "--json", *arguments).json()

    def test_every_tensor_comes_back(self):
        result = self.pack("--verify")
        self.assertIs(result["verified"], True)
        self.succeed("unpack", self.packed, "-o", self.folder / "plain.safetensors")
        metadata, tensors = read(self.folder / "plain.safetensors")
        self.assertEqual(tensors, self.tensors)
        self.assertEqual(metadata, self.metadata)

    def test_what_the_packed_file_holds(self):
        result = self.pack()
        metadata, tensors = read(self.packed)
        description = json.loads(metadata.pop(PACKED_KEY))
        self.assertEqual(metadata, self.metadata)
        self.assertEqual(description["version"], 1)
        rows = {row["name"]: row for row in result["tensors"]}
        self.assertEqual(set(rows), set(self.tensors))
        packed = {"layers.0.weight", "layers.1.weight", "layers.2.weight"}
        self.assertEqual(set(description["tensors"]), packed)
        for name, (dtype, shape, data) in self.tensors.items():
            with self.subTest(name=name):
                self.assertIs(rows[name]["packed"], name in packed)
                self.assertEqual(rows[name]["bytes"], len(data))
                self.assertEqual(rows[name]["packed_bytes"], len(tensors[name][2]))
                if name in packed:
                    self.assertEqual(description["tensors"][name], {"dtype": dtype, "shape": shape})
                    self.assertEqual(tensors[name][:2], ("U8", [len(tensors[name][2])]))
                    self.assertEqual(tensors[name][2][:4], b"SHPK")
                else:
                    self.assertEqual(tensors[name], (dtype, shape, data))
        for name, most in (("layers.0.weight", 0.71), ("layers.1.weight", 0.90), ("layers.2.weight", 0.86)):
            self.assertLess(rows[name]["ratio"], most)
            self.assertEqual(rows[name]["raw_tiles"], 0)
        self.assertEqual(result["packed_tensors"], 3)
        self.assertEqual(result["bytes"], sum(len(data) for _, _, data in self.tensors.values()))
        self.assertEqual(result["packed_bytes"], sum(len(data) for _, _, data in tensors.values()))

    def test_the_number_of_threads_makes_no_difference(self):
        part = normal("BF16", 8192, 9)
        tensors = {"large.weight": ("BF16", [300 * 8192], part * 300)}  # 64 tiles are the work of one thread
        model = model_files.write_safetensors(self.folder / "large.safetensors", tensors)
        files = []
        for threads in ("1", "7"):
            self.succeed("pack", model, "-o", self.packed, "--verify", "--threads", threads)
            files.append(self.packed.read_bytes())
        self.assertEqual(*files)

    def test_many_empty_tensors(self):
        tensors = {}
        for i in range(40):
            tensors[f"e{i}"] = ("BF16", [0], b"")
            tensors[f"t{i}"] = ("I8", [4], bytes([i] * 4))
        model = model_files.write_safetensors(self.folder / "empty.safetensors", tensors)
        self.succeed("pack", model, "-o", self.packed, "--verify")
        self.succeed("unpack", self.packed, "-o", self.folder / "plain.safetensors")
        self.assertEqual(read(self.folder / "plain.safetensors")[1], tensors)

    def test_data_is_aligned_and_metadata_keeps_its_order(self):
        for length in range(9):
            tensors = {"n" * (length + 1): ("BF16", [8192], normal("BF16", 8192, length))}
            metadata = {"zz": "1", "b": "2", "a": "3"}
            model = model_files.write_safetensors(self.folder / "m.safetensors", tensors, metadata)
            self.succeed("pack", model, "-o", self.packed)
            plain = self.folder / "plain.safetensors"
            self.succeed("unpack", self.packed, "-o", plain)
            for path in (self.packed, plain):
                self.assertEqual((8 + struct.unpack("<Q", path.read_bytes()[:8])[0]) % 64, 0)
            self.assertEqual(list(read(plain)[0].items()), list(metadata.items()))

    def test_tables_are_for_people(self):
        text = self.succeed("pack", self.model, "-o", self.packed, "--verify").out
        self.assertIn("3 of 7 tensors packed, read and written at ", text)
        self.assertIn("all tensors come back bit by bit", text)
        self.assertIn("BF16", text)
        self.assertNotIn("layers.0.weight", text)
        self.assertIn("layers.0.weight", self.succeed("pack", self.model, "-o", self.packed, "--all-tensors").out)
        plain = self.folder / "plain.safetensors"
        self.assertRegex(self.succeed("unpack", self.packed, "-o", plain).out, r"^3 of 7 tensors unpacked: .+ from .+")

    def test_plans_of_small_models_are_those_of_the_plain_model(self):
        """The memory through which packed weights arrive would be too large a part of the budget."""
        self.pack()
        plans = []
        for model in (self.model, self.packed):
            plan = self.succeed(
                *("plan", model, "--budget", "50%", *SIM, "--compute-ms", "1", "--all-blocks", "--json")
            ).json()
            del plan["model"]
            plans.append(plan)
        packed = plans[1].pop("packed")
        self.assertEqual(*plans)
        self.assertEqual(packed["unpack_bytes"], 0)
        self.assertEqual(packed["plain"], {key: plans[0][key] for key in packed["plain"]})
        text = self.succeed("plan", self.packed, "--budget", "50%", *SIM).out
        self.assertIn("the plan is for plain weights, which the host unpacks", text)
        self.assertNotIn("kept packed", text)
        text = self.succeed("plan", self.packed, "--budget", "50%", *SIM, "--kinds", "a=1,b=2").out
        self.assertIn("the plan is for plain weights, which the host unpacks", text)

    def test_plans_count_with_packed_weights(self):
        weights = normal("BF16", 100_000, 5)
        tensors = {f"layers.{i}.weight": ("BF16", [9_000_000], weights * 90) for i in range(6)}  # 108 MB
        model = model_files.write_safetensors(self.folder / "large.safetensors", tensors, {})
        ratio = self.succeed("pack", model, "-o", self.packed, "--json").json()["ratio"]
        speeds = ["bandwidth=1GB/s", "unpack_speed=200GB/s"]
        options = [word for one in speeds for word in ("--device-option", one)]

        def plan(*arguments):
            return self.succeed("plan", self.packed, "--device", "sim", *options, *arguments)

        for budget, compute_ms in [("50%", 1), ("50%", 100), ("85%", 1)]:
            figures = plan("--budget", budget, "--compute-ms", compute_ms, "--json").json()
            packed, plain = figures["packed"], figures["packed"]["plain"]
            self.assertAlmostEqual(packed["model_bytes"] / figures["model_bytes"], ratio, places=3)
            self.assertAlmostEqual(packed["unpack_bytes_per_second"] / 200e9, 1, places=1)
            self.assertGreater(packed["unpack_bytes"], 0)
            self.assertGreaterEqual(figures["step_ms"], figures["bound_ms"])
            if compute_ms == 100:  # computing hides the copies, and nothing stays packed
                self.assertEqual(packed["resident_bytes"], 0)
                self.assertLess(figures["step_ms"], 1.03 * plain["step_ms"])
            else:
                self.assertGreater(packed["resident_bytes"], 0)
                self.assertLess(figures["step_ms"], 0.75 * plain["step_ms"])
                self.assertLess(figures["bound_ms"], 0.75 * plain["bound_ms"])
        ran = self.succeed(
            *("run", self.packed, "--device", "sim", *options, "--budget", "50%", "--compute-ms", 100),
            *("--steps", 3, "--json"),
        ).json()
        self.assertAlmostEqual(ran["step_ms"] / 100, 1, places=1)  # as planned
        unpacked = plan("--budget", "50%", "--compute-ms", 100, "--json").json()["bytes_per_step"]
        self.assertLess(ran["bytes_per_step"], 0.8 * unpacked)
        text = plan("--budget", "50%", "--compute-ms", 1).out
        for said in [
            "the device unpacks 200 GB/s",
            "kept packed",
            "(cW − M) / 1.00 GB/s, (W − M) / 200 GB/s",
            "the plan for plain weights, which copies ",
        ]:
            self.assertIn(said, text)

    def test_the_speed_of_unpacking_is_measured_on_the_device(self):
        tensors = {"layers.0.weight": ("BF16", [20_000_000], normal("BF16", 100_000, 5) * 200)}
        model = model_files.write_safetensors(self.folder / "large.safetensors", tensors, {})
        self.succeed("pack", model, "-o", self.packed)
        arguments = ["--budget", "40MiB", "--max-block", "4MiB", "--json"]
        packed = self.succeed("plan", self.packed, "--device", "host", *arguments).json()["packed"]
        self.assertGreater(packed["unpack_bytes_per_second"], 0)

    def test_packed_weights_are_streamed(self):
        self.pack()
        for limit in ([], ["--max-block", "8KiB"]):
            arguments = ["--budget", "60%", "--device", "host", "--steps", "2", "--verify", "--json", *limit]
            runs = [self.succeed("run", model, *arguments).json() for model in (self.model, self.packed)]
            for run in runs:
                self.assertEqual(run["mismatched_blocks"], 0)
                self.assertGreater(run["verified_blocks"], 0)
            self.assertEqual(runs[0]["model_bytes"], runs[1]["model_bytes"])
        self.succeed("run", self.packed, "--budget", "60%", *SIM, "--steps", "1")

    def test_other_commands_do_not_take_packed_bytes_for_weights(self):
        self.pack()
        self.refuse(MODEL, "pack", self.packed, "-o", self.folder / "x", says=["packed already"])
        self.refuse(MODEL, "unpack", self.model, "-o", self.folder / "x", says=["does not say that tensors are packed"])
        self.assertFalse((self.folder / "x").exists())

    def test_files_that_are_in_use_are_kept(self):
        before = self.model.read_bytes()
        self.refuse(USAGE, "pack", self.model, "-o", self.model, says=["is MODEL itself"])
        link = self.folder / "link"
        os.link(self.model, link)
        self.refuse(USAGE, "pack", self.model, "-o", link, says=["is MODEL itself"])
        self.assertEqual(self.model.read_bytes(), before)
        self.pack()
        self.refuse(USAGE, "unpack", self.packed, "-o", self.packed, says=["is PACKED itself"])

    def test_an_output_that_cannot_be_written(self):
        missing = self.folder / "missing" / "x"
        self.refuse(OUTPUT, "pack", self.model, "-o", missing, says=[missing, "No such file"])
        (self.folder / "taken").mkdir()
        os.mkfifo(self.folder / "fifo")
        for name in ("taken", "fifo"):
            self.refuse(OUTPUT, "pack", self.model, "-o", self.folder / name, says=[name, "is not a regular file"])
        self.assertTrue((self.folder / "fifo").is_fifo())
        self.assert_nothing_is_left()

    def assert_nothing_is_left(self):
        self.assertEqual([path.name for path in self.folder.iterdir() if path.name.endswith(".part")], [])

    def test_a_full_disk_leaves_nothing(self):
        def limit():
            resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)

        names = {
            f"{'n' * 90}{i}": ("BF16", [2], bytes(4)) for i in range(200)
        }  # more than a buffer for the header alone
        many = model_files.write_safetensors(self.folder / "many.safetensors", names)
        for model in (self.model, many):
            result = self.finish(self.start("pack", model, "-o", self.packed, preexec_fn=limit))
            self.assertEqual(result.code, OUTPUT, result.err)
            self.assert_nothing_is_left()
            self.assertFalse(self.packed.exists())

    def test_the_file_that_is_replaced_keeps_its_place_and_its_permissions(self):
        target = self.folder / "elsewhere"
        target.write_bytes(b"before")
        target.chmod(0o640)
        link = self.folder / "link.safetensors"
        link.symlink_to(target)
        self.succeed("pack", self.model, "-o", link)
        self.assertTrue(link.is_symlink())
        self.assertEqual(target.read_bytes()[8:9], b"{")
        self.assertEqual(target.stat().st_mode & 0o777, 0o640)

    def test_the_shards_of_a_model(self):
        index = model_files.write_sharded(self.folder / "sharded", self.tensors, 2)
        packed, plain = self.folder / "new" / "packed", self.folder / "plain"
        result = self.succeed("pack", self.folder / "sharded", "-o", packed, "--verify", "--json").json()
        self.assertEqual(result["packed_tensors"], 3)
        self.assertEqual(result["bytes"], sum(len(data) for _, _, data in self.tensors.values()))
        self.assertEqual({one["name"] for one in result["tensors"]}, set(self.tensors))
        names = sorted(os.listdir(self.folder / "sharded"))
        self.assertEqual(sorted(os.listdir(packed)), names)
        plans = [
            self.succeed("plan", model, "--budget", "60%", *SIM, "--json").json()
            for model in (index, packed, packed / os.path.basename(index))
        ]
        for plan in plans[1:]:
            self.assertEqual(plan["model_bytes"], plans[0]["model_bytes"])
            self.assertLess(plan["packed"]["model_bytes"], plan["model_bytes"])
        run = ["--budget", "60%", "--device", "host", "--steps", "1", "--verify", "--json"]
        self.assertEqual(self.succeed("run", packed, *run).json()["mismatched_blocks"], 0)
        result = self.succeed("unpack", packed, "-o", plain, "--json").json()
        self.assertEqual((result["tensors"], result["packed_tensors"]), (7, 3))
        for name in names:
            before, after = (self.folder / folder / name for folder in ("sharded", "plain"))
            if name.endswith(".json"):
                self.assertEqual(after.read_bytes(), before.read_bytes())
            else:
                self.assertEqual(read(after)[1], read(before)[1])

    def test_shards_of_any_name_and_without_bytes(self):
        folder, packed = self.folder / "sharded", self.folder / "packed"
        folder.mkdir()
        shards = {
            "weights.json": {"a": ("BF16", [30_000], normal("BF16", 30_000, 1))},
            "empty.safetensors": {"b": ("F32", [0, 4], b"")},
        }
        for name, tensors in shards.items():
            model_files.write_safetensors(folder / name, tensors, {})
        index = {"weight_map": {"a": "weights.json", "b": "empty.safetensors"}}
        (folder / "model.safetensors.index.json").write_text(json.dumps(index))
        result = self.succeed("pack", folder, "-o", packed, "--verify", "--json").json()
        self.assertEqual((len(result["tensors"]), result["packed_tensors"]), (2, 1))
        self.succeed("unpack", packed, "-o", self.folder / "plain")
        for name in shards:
            self.assertEqual(read(self.folder / "plain" / name)[1], read(folder / name)[1])

    def test_shards_that_cannot_be_packed(self):
        folder = self.folder / "sharded"
        index = model_files.write_sharded(folder, self.tensors, 2)
        self.refuse(USAGE, "pack", folder, "-o", folder, says=["is the folder of the model"])
        self.packed.write_bytes(b"")
        self.refuse(USAGE, "pack", index, "-o", self.packed, says=["is no folder, and the model has 2 files"])
        packed, copy = self.folder / "packed", self.folder / "copy"
        self.succeed("pack", index, "-o", packed)
        self.refuse(MODEL, "pack", packed, "-o", copy, says=["packed already"])
        self.refuse(MODEL, "unpack", folder, "-o", copy, says=["does not say that tensors are packed"])
        # One of the shards is packed, which is found before anything is written.
        last = sorted(os.listdir(folder))[1]
        os.replace(packed / last, folder / last)
        self.refuse(MODEL, "pack", folder, "-o", copy, says=[last, "packed already"])
        self.assertFalse(copy.exists())

    def test_shards_without_an_index_are_no_model(self):
        """So a folder that was not finished is not taken for the whole model."""
        index = model_files.write_sharded(self.folder / "sharded", self.tensors, 2)
        packed = self.folder / "packed"
        self.succeed("pack", index, "-o", packed)
        second = sorted(os.listdir(packed))[1]
        os.remove(packed / second)
        os.mkdir(packed / second)  # in the way of the second shard
        self.refuse(OUTPUT, "pack", index, "-o", packed, says=[second])
        self.assertFalse((packed / os.path.basename(index)).exists())
        os.rmdir(packed / second)
        for command in (["plan", packed, "--budget", "60%", *SIM], ["unpack", packed, "-o", self.folder / "plain"]):
            self.refuse(MODEL, *command, says=["holds one shard of several"])

    def test_plain_bytes_before_a_packed_tensor(self):
        weights = normal("BF16", 30_000, 1)
        tensors = {}
        for i in range(3):
            tensors[f"layers.{i}.a.bias"] = ("BF16", [64], model_files.random_bytes(128, i))
            tensors[f"layers.{i}.a.weight"] = ("BF16", [30_000], weights)
        model = model_files.write_safetensors(self.folder / "biases.safetensors", tensors, {})
        self.assertEqual(self.succeed("pack", model, "-o", self.packed, "--json").json()["packed_tensors"], 3)
        plan = self.succeed("plan", self.packed, "--budget", "60%", *SIM, "--json").json()
        self.assertLess(plan["packed"]["model_bytes"], 0.75 * plan["model_bytes"])
        run = ["--budget", "60%", "--device", "host", "--steps", "1", "--verify", "--json"]
        self.assertEqual(self.succeed("run", self.packed, *run).json()["mismatched_blocks"], 0)

    def test_the_simulation_runs_packed_files_that_are_not_unpacked(self):
        """The budget has no room for the memory through which packed weights arrive."""
        weights = normal("BF16", 60_000, 1)
        tensors = {f"layers.{i}.weight": ("BF16", [600_000], weights * 10) for i in range(12)}
        model = model_files.write_safetensors(self.folder / "sim.safetensors", tensors, {})
        self.succeed("pack", model, "-o", self.packed)
        run = ["--budget", "50%", "--device", "sim", "--steps", "3", "--json"]
        runs = [self.succeed("run", one, *run).json() for one in (model, self.packed)]
        self.assertEqual(runs[0]["bytes_per_step"], runs[1]["bytes_per_step"])

    def test_models_that_are_not_safetensors(self):
        gguf = self.folder / "model.gguf"
        model_files.write_gguf(gguf, model_files.layered_gguf_tensors(2))
        self.refuse(MODEL, "pack", gguf, "-o", self.packed, says=["is GGUF"])

    def test_descriptions_that_lie_are_refused(self):
        self.pack()
        metadata, tensors = read(self.packed)
        description = json.loads(metadata[PACKED_KEY])

        def refuse(change, *says):
            other = json.loads(json.dumps(description))
            change(other)
            text = other["text"] if "text" in other else json.dumps(other)
            path = model_files.write_safetensors(self.folder / "lie.safetensors", tensors, {PACKED_KEY: text})
            self.refuse(MODEL, "unpack", path, "-o", self.folder / "x", says=says)
            self.assertFalse((self.folder / "x").exists())
            self.refuse(MODEL, "plan", path, "--budget", "50%", "--device", "sim", says=says)
            self.refuse(MODEL, "run", path, "--budget", "50%", "--device", "host", "--steps", "1", says=says)

        def set_tensor(name, **members):
            return lambda other: other["tensors"].setdefault(name, {"dtype": "BF16", "shape": [1]}).update(members)

        refuse(lambda other: other.update(version=2), "is of version 2, and only version 1 is known")
        refuse(lambda other: other.update(text="[]"), "is not a description of packed tensors")
        refuse(lambda other: other.update(text="{"), "is not a description of packed tensors")
        deep = '{"version":' + "[" * 200_000 + "]" * 200_000 + ',"tensors":{}}'
        refuse(lambda other: other.update(text=deep), "is not a description of packed tensors")
        refuse(lambda other: other.update(tensors={"a": {}}), "tensor 'a': has no dtype and shape")
        refuse(set_tensor("layers.0.weight", shape=["x"]), "a shape that is not made of numbers")
        refuse(set_tensor("layers.0.weight", shape=[-1]), "a shape that is not made of numbers")
        refuse(
            set_tensor("layers.0.weight", shape=[30001]),
            "layers.0.weight",
            "not a packed tensor of the type and the shape",
        )
        refuse(set_tensor("layers.0.weight", shape=[2**63, 2**63]), "layers.0.weight")
        refuse(
            set_tensor("layers.0.weight", dtype="F16"),
            "layers.0.weight",
            "not a packed tensor of the type and the shape",
        )
        refuse(
            set_tensor("layers.0.weight", dtype="I64"),
            "layers.0.weight",
            "not a packed tensor of the type and the shape",
        )
        refuse(set_tensor("other"), "describes a packed tensor that is not in the file")
        refuse(set_tensor("positions"), "positions", "its elements are not bytes")
        tensors["nothing"] = ("U8", [0], b"")
        refuse(set_tensor("nothing", shape=[1000]), "nothing", "has no bytes")

    def test_a_wrong_bit_is_refused(self):
        self.pack()
        content = bytearray(self.packed.read_bytes())
        length = struct.unpack("<Q", content[:8])[0]
        header = json.loads(content[8 : 8 + length])
        begin, end = (8 + length + at for at in header["layers.0.weight"]["data_offsets"])
        for at in [begin, begin + 8, begin + 63, begin + 64, end - 1, *random.Random(5).sample(range(begin, end), 20)]:
            other = bytearray(content)
            other[at] ^= 1 << (at % 8)
            broken = self.folder / "broken.safetensors"
            broken.write_bytes(other)
            self.refuse(
                MODEL, "unpack", broken, "-o", self.folder / "x", says=["layers.0.weight", "not a packed tensor"]
            )
            self.assertFalse((self.folder / "x").exists())
            result = self.run_command("run", broken, "--budget", "60%", "--device", "host", "--steps", "1")
            self.assertNotEqual(result.code, 0)
            self.assertIn("not a packed tensor", result.err)

    def test_an_interrupted_command_leaves_the_file_that_was_there(self):
        big = {f"layers.{i}.weight": ("F32", [1 << 19], model_files.random_bytes(1 << 21, i)) for i in range(60)}
        model = model_files.write_safetensors(self.folder / "big.safetensors", big)
        for _ in range(10):  # a signal may come too late
            self.packed.write_bytes(b"before")
            process = self.start("pack", model, "-o", self.packed, "--threads", "1", "--verify")
            self.wait_for_part(process)
            process.send_signal(signal.SIGINT)
            result = self.finish(process)
            self.assert_nothing_is_left()
            if result.code == INTERRUPTED:
                self.assertEqual(self.packed.read_bytes(), b"before")
                return
            self.assertEqual(result.code, SUCCESS)
        self.fail("no signal came in time")

    def wait_for_part(self, process):
        while process.poll() is None and not any(path.name.endswith(".part") for path in self.folder.iterdir()):
            pass


if __name__ == "__main__":
    harness.main()
