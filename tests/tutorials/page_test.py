"""The follower of pages itself: it finds what it has to find. And each tutorial has a test, and is in the manual."""

import pathlib
import re
import sys
import tempfile
import unittest

import page

PAGES = page.ROOT / "docs/tutorials"


class Follower(unittest.TestCase):
    def follow(self, text):
        with tempfile.NamedTemporaryFile("w", suffix=".md") as file:
            file.write(text)
            file.flush()
            return page.follow(pathlib.Path(file.name), page.ROOT / "build", sys.executable, "")

    def refused(self, text, told):
        with self.assertRaisesRegex(page.Wrong, told):
            self.follow(text)

    def test_a_page_is_followed(self):
        program = '```python title="one.py"\nprint("a 17 z")\n```\n'
        self.assertEqual(self.follow(program + "```sh\npython one.py\n```\n\n```text\na <number> z\n```\n"), 1)

    def test_variables_stay(self):
        self.assertEqual(
            self.follow("```sh\nexport A=1 B='2\n3'\n```\n```sh\necho \"$A$B\"\n```\n```text\n12\n3\n```\n"), 2
        )

    def test_other_output_is_found(self):
        self.refused("```sh\necho 1; echo 3\n```\n```text\n1\n2\n```\n", "the page shows\n  2\nand there is\n  3")
        self.refused("```sh\necho 1\n```\n```text\n1\n2\n```\n", "and there is\n  no more")
        self.refused("```sh\necho 1; echo 2\n```\n```text\n1\n```\n", "does not show\n  2")
        self.refused("```sh\necho x\n```\n```text\n<number>\n```\n", "and there is\n  x")
        self.refused("```sh\necho 1; echo 2; echo 4\n```\n```text\n1\n…\n3\n…\n```\n", "and there is\n  no more")

    def test_left_out_lines(self):
        self.assertEqual(self.follow("```sh\nseq 9\n```\n```text\n1\n…\n4\n5\n…\n```\n"), 1)

    def test_failures_are_found(self):
        self.refused("text\n\n```sh\nfalse | true\necho on\n```\n", r":3: exit status 1")

    def test_what_nothing_runs_is_refused(self):
        self.refused("```c\nint a;\n```\n```sh\ntrue\n```\n", "has no title")
        self.refused("```ruby\n1\n```\n", "the language ruby is not known")
        self.refused("```text\n1\n```\n", "not right after a block of sh")
        self.refused("```sh\ntrue\n```\n  ```c\n```\n", "a fence is not understood")
        self.refused('```c title="a.c"\nint a;\n```\n', "nothing to run")
        self.refused("```sh\necho 1\n```\n```text\n<figure>\n```\n", "<figure> is not one of")


class Pages(unittest.TestCase):
    def test_each_page_is_tested_and_in_the_manual(self):
        tests = (page.ROOT / "tests/tutorials/meson.build").read_text()
        tests += (page.ROOT / "tests/bindings/python/torch/tutorials_test.py").read_text()
        manual = (page.ROOT / "packaging/site/mkdocs.yml").read_text()
        index = (PAGES / "README.md").read_text()
        for path in PAGES.glob("*.md"):
            place = "tutorials.md" if path.name == "README.md" else f"tutorials-{path.name}"
            self.assertIn(f"- {place}\n", manual)
            if path.name != "README.md":
                self.assertRegex(tests, rf"['\"]{path.stem}['\"]")
                self.assertIn(f"]({path.name})", index)

    def test_the_engine_has_100_lines(self):
        (program,) = re.findall(r"^```c title.*?\n(.*?)^```", (PAGES / "engine_in_c.md").read_text(), re.S | re.M)
        self.assertLessEqual(program.count("\n"), 100)


if __name__ == "__main__":
    unittest.main()
