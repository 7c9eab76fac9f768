"""`stagehand devices`."""

import harness
from harness import CommandTest


class DevicesTest(CommandTest):
    def backends(self):
        found = self.succeed("devices", "--json").json()
        return found, {backend["name"]: backend for backend in found["backends"]}

    def test_host_device_works(self):
        _, backends = self.backends()
        host = backends["host"]
        self.assertTrue(host["works"])
        self.assertTrue(host["built_in"])
        self.assertEqual(host["status"], "SH_OK")
        self.assertEqual(len(host["devices"]), 1)  # the others are the same memory
        device = host["devices"][0]
        self.assertEqual((device["bus_id"], device["bridges"], device["shares"]), (None, [], []))
        self.assertTrue(device["works"], device)
        self.assertTrue(device["fixed_addresses"])
        self.assertTrue(device["host_addressable"])
        self.assertFalse(device["virtual_time"])
        self.assertGreater(device["total_bytes"], 0)
        self.assertGreater(device["budget_bytes"], 0)
        self.assertEqual(device["page_bytes"] % device["granularity_bytes"], 0)
        self.assertGreater(device["to_device_bytes_per_second"], 0)
        self.assertGreater(device["to_host_bytes_per_second"], 0)
        self.assertIn(device["pinned"], (True, False))

    def test_what_does_not_work_says_why(self):
        _, backends = self.backends()
        for backend in backends.values():
            if not backend["works"]:
                self.assertNotEqual(backend["reason"], "", backend)
                self.assertNotEqual(backend["status"], "SH_OK")
                self.assertEqual(backend["devices"], [])
            for device in backend["devices"]:
                if not device["works"]:
                    self.assertNotEqual(device["reason"], "", device)

    def test_simulation_is_marked_as_one(self):
        _, backends = self.backends()
        self.assertTrue(backends["sim"]["devices"][0]["virtual_time"])

    def test_limits_of_the_host(self):
        found, _ = self.backends()
        host = found["host"]
        self.assertGreaterEqual(host["total_bytes"], host["available_bytes"])
        for key in ("memlock_soft_bytes", "memlock_hard_bytes", "cgroup_limit_bytes", "cgroup"):
            self.assertIn(key, host)
        self.assertEqual(host["cgroup"] is None, host["cgroup_limit_bytes"] is None)

    def test_table_names_each_backend(self):
        _, backends = self.backends()
        text = self.succeed("devices").out
        for name, backend in backends.items():
            self.assertIn(name, text)
            if not backend["works"]:
                self.assertIn(backend["reason"], text)
        self.assertIn("RLIMIT_MEMLOCK", text)
        self.assertIn("control group", text)


if __name__ == "__main__":
    harness.main()
