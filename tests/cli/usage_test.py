"""The command line itself: help, version, mistakes, the manual and the completions."""

import os
import re

import harness
from harness import CommandTest, USAGE, OUTPUT, SOURCE_ROOT


def options_in(text):
    return set(re.findall(r"(?<![\w-])--[a-z][a-z-]*", text))


class UsageTest(CommandTest):
    def help_options(self, subcommand):
        """Options that a subcommand's help lists at the beginning of a line."""
        found = set()
        for line in self.succeed(subcommand, "--help").out.splitlines():
            start = re.match(r"\s+(?:-\w,)?(--[a-z-]+)", line)
            if start:
                found.add(start.group(1))
        return found

    def test_help_and_version_go_to_standard_output(self):
        for subcommand in ([], ["devices"], ["plan"], ["run"], ["bench"], ["top"]):
            self.assertIn("Usage:", self.succeed(*subcommand, "--help").out)
            self.assertIn("Usage:", self.succeed(*subcommand, "-h").out)
        self.assertRegex(self.succeed("--version").out, r"^stagehand \d+\.\d+\.\d+\n$")

    def test_exit_codes_are_in_the_help(self):
        self.assertIn("Exit codes:", self.succeed("--help").out)

    def test_mistakes_are_named(self):
        model = self.layered_model()
        run = ["run", model, "--budget", "25%", "--steps", "2"]
        for arguments, says in [
            ([], "a subcommand is required: devices, plan, run, bench or top"),
            (["fly"], "'fly'"),
            (["--fly"], "--fly"),
            (["plan"], "MODEL"),
            (["plan", model], "--budget"),
            (["run", model, "--budget", "25%"], "--steps"),
            ([*run, "more"], "more"),
            ([*run, "--bandwidth", "1GB"], "--bandwidth"),
            ([*run, "--order", "sideways"], "'sideways' is neither forward nor forward-backward"),
            ([*run, "--compute-ms", "-1"], "--compute-ms"),
            ([*run, "--compute-ms", "nan"], "'nan'"),
            ([*run, "--compute-ms", "1e300"], "'1e300'"),
            ([*run, "--device-option", "fast"], "'fast' is not KEY=VALUE"),
            ([*run, "--max-block", "1"], "--max-block"),
            ([*run, "--max-header", "0"], "--max-header"),
            (["run", model, "--budget", "25%", "--steps", "0"], "'0'"),
            (["run", model, "--budget", "25%", "--steps", "two"], "'two'"),
            (["run", model, "--budget", "25%", "--steps", "99999999999999999999"], "--steps"),
            (["run", model, "--steps", "1", "--budget", "25q"], "'25q'"),
            (["run", model, "--steps", "1", "--budget", "-5"], "'-5'"),
            (["run", model, "--steps", "1", "--budget", ""], "--budget"),
            (["run", model, "--steps", "1", "--budget", "0"], "--budget"),
            (["run", model, "--steps", "1", "--budget", "99999999999999999999GB"], "--budget"),
            (["plan", model, "--budget", "25%", "--bandwidth", "0"], "--bandwidth"),
            (["plan", model, "--budget", "25%", "--bandwidth", "fast"], "'fast'"),
        ]:
            with self.subTest(arguments=arguments):
                self.refuse(USAGE, *arguments, says=[says])

    def test_control_characters_of_the_command_line_do_not_reach_the_terminal(self):
        line = self.refuse(USAGE, "plan", "x", "--budget", "1\x1b[31m\n2")
        self.assertNotIn("\x1b", line)

    def test_unknown_backend_option_is_a_mistake(self):
        self.refuse(USAGE, "run", self.layered_model(), "--budget", "25%", "--steps", "1", "--device", "host",
                    "--device-option", "colour=red", says=["colour"])

    def test_full_disk_behind_standard_output_is_noticed(self):
        model = self.layered_model()
        for arguments in (["--version"], ["devices"], ["devices", "--json"], ["plan", model, "--budget", "25%", "--json"],
                          ["run", model, "--budget", "25%", "--steps", "1", "--json"]):
            with self.subTest(arguments=arguments), open("/dev/full", "wb") as full:
                result = self.run_command(*arguments, stdout=full)
                self.assertEqual(result.code, OUTPUT, result.err)
                self.assert_one_error(result, ["standard output"])

    def outputs(self):
        model = self.layered_model()
        return (["--version"], ["--help"], ["devices", "--json"], ["plan", model, "--budget", "25%", "--json"],
                ["run", model, "--budget", "25%", "--steps", "1"], ["run", model, "--budget", "25%", "--steps", "1", "--json"])

    def test_closed_standard_output_is_noticed(self):
        # Without one, the next file that is opened would be it: the model, or the device's memory.
        for arguments in self.outputs():
            with self.subTest(arguments=arguments):
                result = self.run_command(*arguments, stdout=None, preexec_fn=lambda: os.close(1))
                self.assertEqual(result.code, OUTPUT, result.err)
                self.assert_one_error(result, ["standard output"])

    def test_reader_that_has_gone_is_noticed(self):
        for arguments in self.outputs():
            with self.subTest(arguments=arguments):
                reading, writing = os.pipe()
                os.close(reading)
                result = self.run_command(*arguments, stdout=writing)
                os.close(writing)
                self.assertEqual(result.code, OUTPUT, result.err)
                self.assert_one_error(result, ["standard output"])

    def test_standard_error_that_takes_nothing_does_not_hide_the_exit_code(self):
        mistake = ["plan", self.layered_model(), "--budget", "nothing"]
        with open("/dev/full", "wb") as full:
            self.assertEqual(self.run_command(*mistake, stderr=full).code, USAGE)
        self.assertEqual(self.run_command(*mistake, stderr=None, preexec_fn=lambda: os.close(2)).code, USAGE)

    def test_all_standard_streams_closed(self):
        def close():
            for stream in (0, 1, 2):
                os.close(stream)

        for arguments in self.outputs():
            with self.subTest(arguments=arguments):
                self.assertEqual(self.run_command(*arguments, stdout=None, stderr=None, preexec_fn=close).code, OUTPUT)

    def test_manual_lists_every_option(self):
        manual = (SOURCE_ROOT / "cli/doc/stagehand.1").read_text(encoding="utf-8")
        listed = {"--" + name for name in re.findall(r"Fl -([a-z-]+)", manual)}
        offered = set().union(*(self.help_options(name) for name in ("devices", "plan", "run", "bench", "top"))) | {"--version"}
        self.assertEqual(listed, offered)

    def test_page_of_the_documentation_lists_every_option(self):
        page = (SOURCE_ROOT / "docs/command.md").read_text(encoding="utf-8")
        for name in ("devices", "plan", "run", "bench", "top"):
            self.assertLessEqual(self.help_options(name) - {"--help"}, options_in(page))

    def test_completions_offer_every_option(self):
        folder = SOURCE_ROOT / "cli/completions"
        bash = (folder / "stagehand.bash").read_text(encoding="utf-8")
        for name in ("devices", "plan", "run", "bench", "top"):
            offered = self.help_options(name)
            case = re.search(rf"\n        {name}\)\n(.*?);;", bash, re.S).group(1)
            self.assertEqual(options_in(case), offered, name)
            fish = (folder / "stagehand.fish").read_text(encoding="utf-8")
            self.assertLessEqual(offered, {"--" + word for word in re.findall(r" -l ([a-z-]+)", fish)})
            zsh = (folder / "_stagehand").read_text(encoding="utf-8")
            self.assertLessEqual(offered, options_in(zsh))


if __name__ == "__main__":
    harness.main()
