"""Streams a model through a GPU plugin with and without mapped memory, and compares each byte:
stream_test.py DEVICE[,OPTION=VALUE].
"""

import os
import sys
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "cli"))

import harness  # noqa: E402  (needs the path)

DEVICE, *OPTIONS = sys.argv.pop(1).split(",")


class StreamTest(harness.CommandTest):
    def setUp(self):
        super().setUp()
        self.on_device = ["--device", DEVICE] + [
            argument for option in OPTIONS for argument in ("--device-option", option)
        ]
        # The device has pages of 2 MiB, so no block is packed with others.
        self.model = self.layered_model(layers=7, layer_bytes=4 << 20, table_bytes=6 << 20)

    def test_each_byte_arrives(self):
        for budget in ("16MiB", "24MiB", "90%", "64MiB"):
            with self.subTest(budget=budget):
                run = self.succeed(
                    "run", self.model, "--budget", budget, *self.on_device, "--steps", "4", "--verify", "--json"
                ).json()
                self.assertEqual(run["verified_blocks"], 4 * run["blocks"])
                self.assertEqual(run["mismatched_blocks"], 0)
                self.assertLessEqual(run["peak_device_bytes"], run["budget_bytes"])
                self.assertEqual(run["streamed_blocks"] == 0, budget == "64MiB")


if __name__ == "__main__":
    unittest.main(verbosity=2)
