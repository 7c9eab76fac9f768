"""Devices that are not there: each subcommand says which device it searched for, and why the device cannot be used."""

import os
import unittest

import harness
from harness import CommandTest, DEVICE, USAGE

# Folders of the cuda backend, and of a stub of its driver that uses the host's memory.
CUDA_PATH = os.environ.get("STAGEHAND_CUDA_PATH")
STUB_PATH = os.environ.get("STAGEHAND_STUB_PATH")


class AbsentDeviceTest(CommandTest):
    def refuse_everywhere(self, device, *says, code=DEVICE):
        model = self.layered_model(layers=2, layer_bytes=1 << 16, table_bytes=1 << 16)
        for arguments in (
            ["plan", model, "--budget", "50%"],
            ["run", model, "--budget", "50%", "--steps", "1"],
            ["bench"],
        ):
            for json in ([], ["--json"]):
                with self.subTest(arguments=arguments, json=json):
                    self.refuse(code, *arguments, "--device", device, *json, says=[device, *says])

    def test_backend_that_is_not_installed(self):
        self.environment["STAGEHAND_BACKEND_PATH"] = str(self.folder)
        self.refuse_everywhere("cuda:0", "there is no backend 'cuda'", self.folder)
        self.assertIn("cuda  not found\n", self.succeed("devices").out)

    def test_plugin_that_cannot_be_loaded(self):
        self.environment["STAGEHAND_BACKEND_PATH"] = str(self.folder)
        plugin = self.folder / "stagehand-cuda.so"
        plugin.write_text("no shared object")
        self.refuse_everywhere("cuda:0", "backend 'cuda' cannot be loaded", plugin)
        text = self.succeed("devices").out
        self.assertIn("cuda  cannot be loaded\n", text)
        self.assertIn(str(plugin), text)

    @unittest.skipUnless(CUDA_PATH, "there is no cuda backend in this build")
    def test_driver_that_is_not_installed(self):
        self.environment["STAGEHAND_BACKEND_PATH"] = CUDA_PATH
        backend = {found["name"]: found for found in self.succeed("devices", "--json").json()["backends"]}["cuda"]
        if backend["works"]:
            self.skipTest("there is a GPU")
        self.assertEqual(backend["status"], "SH_ERROR_BACKEND_UNAVAILABLE")
        self.assertEqual(backend["devices"], [])
        self.assertNotEqual(backend["reason"], "")
        self.refuse_everywhere("cuda:0", backend["reason"])

    @unittest.skipUnless(CUDA_PATH and STUB_PATH, "there is no stub of CUDA's driver in this build")
    def test_number_that_the_driver_does_not_have(self):
        self.environment["STAGEHAND_BACKEND_PATH"] = CUDA_PATH
        self.environment["LD_LIBRARY_PATH"] = STUB_PATH
        self.refuse_everywhere("cuda:7", "cuda", "7")

    def test_name_that_is_none(self):
        for device in ("cuda:x", "cuda:-1", ":0"):
            self.refuse_everywhere(device, code=USAGE)


if __name__ == "__main__":
    harness.main()
