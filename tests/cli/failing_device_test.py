"""A device that fails in the middle of a run: the command reports the failure and exits as its manual says."""

import os
import unittest

import harness
from harness import CommandTest, DEVICE, FAILURE, SUCCESS

FAULT_PATH = os.environ.get("STAGEHAND_FAULT_PATH")
FAULT = "--device fault --device-option wrap=host".split()


@unittest.skipUnless(FAULT_PATH, "there is no fault backend in this build")
class FailingDeviceTest(CommandTest):
    def setUp(self):
        super().setUp()
        self.environment["STAGEHAND_BACKEND_PATH"] = FAULT_PATH
        self.model = self.layered_model(layers=3, layer_bytes=1 << 16, table_bytes=1 << 16)

    def stream(self, *options):
        arguments = ["run", self.model, *"--budget 50% --steps 2 --verify --json".split(), *FAULT]
        for option in options:
            arguments += ["--device-option", option]
        return self.run_command(*arguments)

    def test_without_failures_it_is_a_device_like_any_other(self):
        result = self.stream()
        self.assertEqual(result.code, SUCCESS, result.err)
        self.assertEqual(result.json()["mismatched_blocks"], 0)

    def test_failing_copy_ends_the_run(self):
        result = self.stream("fail_call=copy_to_device", "fail_at=1", "fail_count=0")
        self.assertEqual(result.code, DEVICE, result.err)
        self.assert_one_error(result, ["copy_to_device"])
        self.assertEqual(result.out, "")

    def test_lost_device_ends_the_run(self):
        result = self.stream("fail_call=copy_to_device", "fail_at=3", "fail_count=0", "fail_status=-502")
        self.assertEqual(result.code, DEVICE, result.err)
        self.assert_one_error(result)

    def test_failure_at_any_call(self):
        for call in harness.sample([*range(1, 60), *range(60, 1000, 41)]):
            with self.subTest(call=call):
                result = self.stream(f"fail_at={call}")
                if result.code == SUCCESS:
                    # The library can work without that call.
                    self.assertEqual(result.json()["mismatched_blocks"], 0)
                    self.assertEqual(result.err, "")
                else:
                    self.assertIn(result.code, (FAILURE, DEVICE))
                    self.assert_one_error(result)
                    self.assertEqual(result.out, "")

    def test_bench_names_what_failed(self):
        for group in ("link", "mapping", "streaming"):
            for call in harness.sample([*range(1, 40, 6), *range(40, 1000, 97)]):
                with self.subTest(group=group, call=call):
                    bench = ["bench", *"--quick --bytes 32MiB --json --only".split(), group, *FAULT]
                    result = self.run_command(*bench, "--device-option", f"fail_at={call}")
                    if result.code == SUCCESS:
                        self.assertEqual(list(result.json()["groups"]), [group])
                        self.assertEqual(result.err, "")
                    else:
                        self.assertIn(result.code, (FAILURE, DEVICE))
                        self.assert_one_error(result)
                        self.assertEqual(result.out, "")


if __name__ == "__main__":
    harness.main()
