"""The command line itself: help, version, mistakes, the manual and the completions."""

import os
import re
import shutil
import subprocess

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
        for subcommand in (
            [],
            ["devices"],
            ["plan"],
            ["run"],
            ["pack"],
            ["unpack"],
            ["report"],
            ["bench"],
            ["top"],
            ["release"],
            ["resume"],
        ):
            self.assertIn("Usage:", self.succeed(*subcommand, "--help").out)
            self.assertIn("Usage:", self.succeed(*subcommand, "-h").out)
        self.assertRegex(self.succeed("--version").out, r"^stagehand \d+\.\d+\.\d+\n$")

    def test_help_is_a_subcommand_as_well(self):
        self.assertEqual(self.succeed("help").out, self.succeed("--help").out)
        self.assertEqual(self.succeed("help", "help").out, self.succeed("--help").out)
        self.assertEqual(self.succeed("help", "--help").out, self.succeed("--help").out)
        for name in ("devices", "plan", "run", "pack", "unpack", "report", "bench", "top", "release", "resume"):
            self.assertEqual(self.succeed("help", name).out, self.succeed(name, "--help").out)
        self.assertRegex(self.succeed("--help").out, r"\n  help  +Print this help")

    def test_exit_codes_are_in_the_help(self):
        self.assertIn("Exit codes:", self.succeed("--help").out)

    def test_mistakes_are_named(self):
        model = self.layered_model()
        run = ["run", model, "--budget", "25%", "--steps", "2"]
        for arguments, says in [
            (
                [],
                "a subcommand is required; the subcommands are devices, plan, run, pack, unpack, report, bench, top, release, resume and help",
            ),
            (
                ["fly"],
                "there is no subcommand 'fly'; the subcommands are devices, plan, run, pack, unpack, report, bench, top, release, resume and help",
            ),
            (["fly", "--help"], "there is no subcommand 'fly'"),
            (["help", "fly"], "there is no subcommand 'fly'"),
            (["--fly"], "stagehand has no option '--fly' before a subcommand; the subcommands are devices"),
            (["--json", "plan"], "stagehand has no option '--json' before a subcommand"),
            (["plan"], "MODEL is required: a safetensors or GGUF file"),
            (["plan", "--budget", "1GB"], "MODEL is required: a safetensors or GGUF file"),
            (["plan", model], "--budget B is required: device memory for weights: bytes, 512MiB, 2GB, 25%"),
            (["run", model, "--budget", "25%"], "--steps N is required: the number of steps"),
            ([*run, "more"], "'more' is unexpected; stagehand run takes only one MODEL"),
            (["devices", "more"], "'more' is unexpected; stagehand devices takes no arguments besides options"),
            ([*run, "--bandwidth", "1GB"], "stagehand run has no option '--bandwidth'; its options are "),
            ([*run, "-x"], "stagehand run has no option '-x'"),
            ([*run, "--json=yes"], "--json takes no value; give --json alone or leave it out"),
            ([*run, "--order"], "--order has no value; write --order ORDER: the order in which"),
            (
                [*run, "--device", "host", "--helpers", "host:0"],
                "a device cannot help itself" if "STAGEHAND_HELPERS" in os.environ else "this build has no helpers",
            ),
            ([*run, "--steps", "3"], "--steps is given 2 times (2, 3); give it once"),
            ([*run, "--budget", "3MB"], "--budget is given 2 times (25%, 3MB); give it once"),
            ([*run, "--order", "sideways"], "--order: 'sideways' is not an order; the orders are forward and"),
            ([*run, "--compute-ms", "-1"], "--compute-ms: '-1' is not a number of milliseconds from 0 to 1e9"),
            ([*run, "--compute-ms", "nan"], "'nan'"),
            ([*run, "--compute-ms", "1e300"], "'1e300'"),
            ([*run, "--device", "host", "--device-option", "colour=red"], "colour"),
            ([*run, "--device-option", "fast"], "--device-option: 'fast' is not of the form KEY=VALUE, such as"),
            ([*run, "--max-block", "1"], "--max-block: '1' is too small; the least is 4096 bytes"),
            ([*run, "--max-header", "0"], "--max-header: '0' is too small; the least is 1 byte"),
            (["run", model, "--budget", "25%", "--steps", "0"], "--steps: '0' is not a whole number from 1 to"),
            (["run", model, "--budget", "25%", "--steps", "two"], "--steps: 'two' is not a whole number from 1 to"),
            (["run", model, "--budget", "25%", "--steps", "99999999999999999999"], "--steps: '99999999999999999999'"),
            (["run", model, "--budget", "25%", "--steps", "0x10"], "--steps: '0x10' is not a whole number from 1 to"),
            (["run", model, "--budget", "25%", "--steps", " 2"], "--steps: ' 2' is not a whole number from 1 to"),
            ([*run, "--compute-ms", "0x1p3"], "--compute-ms: '0x1p3' is not a number of milliseconds from 0 to 1e9"),
            (["plan", model, "--budget", "25%", "--kinds", "a=0x10"], "'a=0x10' is not a kind of step"),
            (["pack", model, "-o", "x", "--threads", "+2"], "--threads: '+2' is not a whole number from 1 to 1024"),
            (["top", "--interval", "1 "], "--interval: '1 ' is not a number of seconds from 0.05 to 86400"),
            (["release", "--wait", "-1"], "--wait: '-1' is not a number of seconds from 0 to 3600"),
            (["resume", "--drop"], "stagehand resume has no option '--drop'"),
            (["release", "1", "--socket", "/x"], "PROCESS and --socket are both given; give one of them"),
            (["pack", "-o", "x"], "MODEL is required: a safetensors file"),
            (["pack", model], "--output FILE is required: the packed file to write"),
            (["pack", model, "-o", "x", "--threads", "0"], "--threads"),
            (["unpack", "-o", "x"], "PACKED is required: a file or a folder that"),
            (["report", "-o", "x.html"], "FILES is required: the telemetry of a run"),
            (["report", "run.jsonl"], "--output FILE is required: the HTML page"),
            (["top", "--interval", "0"], "--interval: '0' is not a number of seconds from 0.05 to 86400"),
            (["run", model, "--steps", "1", "--budget", "25q"], "'25q'"),
            (["run", model, "--steps", "1", "--budget", "-5"], "'-5'"),
            (["run", model, "--steps", "1", "--budget", ""], "--budget"),
            (["run", model, "--steps", "1", "--budget", "0"], "--budget: '0' is 0 bytes for this model"),
            (["run", model, "--steps", "1", "--budget", "2Gb"], "--budget: '2Gb' does not say whether bits or bytes"),
            (["plan", model, "--budget", "25%", "--bandwidth", "25Gb/s"], "write GB/s for bytes per second, or Gbit/s"),
            (["plan", model, "--budget", "25%", "--unordered", ""], "--unordered: '' matches no name"),
            (["run", model, "--steps", "1", "--budget", "99999999999999999999GB"], "--budget"),
            (["plan", model, "--budget", "25%", "--bandwidth", "0"], "--bandwidth"),
            (["plan", model, "--budget", "25%", "--bandwidth", "fast"], "'fast'"),
        ]:
            with self.subTest(arguments=arguments):
                self.refuse(USAGE, *arguments, says=[says])

    def test_control_characters_of_the_command_line_do_not_reach_the_terminal(self):
        line = self.refuse(USAGE, "plan", "x", "--budget", "1\x1b[31m\n2")
        self.assertNotIn("\x1b", line)

    def test_full_disk_behind_standard_output_is_noticed(self):
        model = self.layered_model()
        for arguments in (
            ["--version"],
            ["devices"],
            ["devices", "--json"],
            ["plan", model, "--budget", "25%", "--json"],
            ["run", model, "--budget", "25%", "--steps", "1", "--json"],
        ):
            with self.subTest(arguments=arguments), open("/dev/full", "wb") as full:
                result = self.run_command(*arguments, stdout=full)
                self.assertEqual(result.code, OUTPUT, result.err)
                self.assert_one_error(result, ["standard output"])

    def outputs(self):
        model = self.layered_model()
        return (
            ["--version"],
            ["--help"],
            ["devices", "--json"],
            ["plan", model, "--budget", "25%", "--json"],
            ["run", model, "--budget", "25%", "--steps", "1"],
            ["run", model, "--budget", "25%", "--steps", "1", "--json"],
        )

    def test_closed_standard_output_is_noticed(self):
        # The next opened file takes the descriptor of a closed output: the model, or the device's memory.
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
        offered = set().union(
            *(
                self.help_options(name)
                for name in ("devices", "plan", "run", "pack", "unpack", "report", "bench", "top", "release", "resume")
            )
        ) | {"--version"}
        self.assertEqual(listed, offered)

    def test_manual_has_a_date_and_reads_without_warnings(self):
        manual = SOURCE_ROOT / "cli/doc/stagehand.1"
        self.assertRegex(manual.read_text(encoding="utf-8"), r"\n\.Dd [A-Z][a-z]+ \d{1,2}, 20(2[6-9]|[3-9]\d)\n")
        if shutil.which("mandoc"):
            lint = subprocess.run(["mandoc", "-T", "lint", "-W", "warning", manual], capture_output=True, text=True)
            self.assertEqual(lint.stdout, "")

    def test_manual_lists_every_variable(self):
        manual = (SOURCE_ROOT / "cli/doc/stagehand.1").read_text(encoding="utf-8")
        section = manual.split(".Sh ENVIRONMENT")[1].split(".Sh ")[0]
        listed = set(re.findall(r"^\.It Ev (\w+)$", section, re.M))
        read = set()
        for folder in ("cli", "lib"):
            for path in (SOURCE_ROOT / folder).rglob("*.cpp"):
                read |= set(re.findall(r'getenv\(\s*"(\w+)"\s*\)', path.read_text(encoding="utf-8")))
        self.assertEqual(listed, read)
        page = (SOURCE_ROOT / "docs/environment.md").read_text(encoding="utf-8")
        table = page.split("## Variables")[1].split("`./dev` reads")[0]
        of_terminals = {"NO_COLOR", "TERM"}
        self.assertEqual(listed - of_terminals, set(re.findall(r"^\| `(\w+)", table, re.M)))

    def test_documents_of_the_manual_are_installed(self):
        manual = (SOURCE_ROOT / "cli/doc/stagehand.1").read_text(encoding="utf-8")
        referred = set(re.findall(r"[\w./]+\.md\b", manual))
        packaging = (SOURCE_ROOT / "packaging/meson.build").read_text(encoding="utf-8")
        self.assertIn("install_subdir('../docs', install_dir: doc_dir", packaging)
        self.assertTrue(referred)
        for name in referred:
            self.assertTrue((SOURCE_ROOT / "docs" / name).exists(), name)

    def test_page_of_the_documentation_lists_every_option(self):
        page = (SOURCE_ROOT / "docs/command.md").read_text(encoding="utf-8")
        for name in ("devices", "plan", "run", "pack", "unpack", "report", "bench", "top", "release", "resume"):
            self.assertLessEqual(self.help_options(name) - {"--help"}, options_in(page))

    def test_completions_offer_every_option(self):
        folder = SOURCE_ROOT / "cli/completions"
        bash = (folder / "stagehand.bash").read_text(encoding="utf-8")
        for name in ("devices", "plan", "run", "pack", "unpack", "report", "bench", "top", "release", "resume"):
            offered = self.help_options(name)
            case = re.search(rf"\n        {name}\)\n(.*?);;", bash, re.S).group(1)
            self.assertEqual(options_in(case), offered, name)
            fish = (folder / "stagehand.fish").read_text(encoding="utf-8")
            self.assertLessEqual(offered, {"--" + word for word in re.findall(r" -l ([a-z-]+)", fish)})
            zsh = (folder / "_stagehand").read_text(encoding="utf-8")
            self.assertLessEqual(offered, options_in(zsh))


if __name__ == "__main__":
    harness.main()
