"""`stagehand report` and `stagehand run --report`: what the page holds, and which files are refused."""

import html.parser
import itertools
import json
import re

import harness
from harness import FAILURE, MODEL, OUTPUT, USAGE, CommandTest

HOSTILE = "</script><script>alert(1)</script><!-- \"'& \u2028\x01 <b>"
PICTURES = ("plan", "timeline", "memory", "curve", "steps")

VOID = {"meta", "link", "br"}


class Page(html.parser.HTMLParser):
    """The page as a browser reads it: its data, its words outside of scripts, its elements."""

    def __init__(self, text):
        super().__init__()
        self.open = []
        self.elements = []
        self.scripts = []
        self.words = ""
        self.feed(text)
        self.close()
        self.data = json.loads(self.scripts[0][1])
        self.pictures = {attributes["id"] for tag, attributes in self.elements if attributes.get("class") == "chart"}

    def handle_starttag(self, tag, attributes):
        self.elements.append((tag, dict(attributes)))
        if tag == "script":
            self.scripts.append((dict(attributes), ""))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open and self.open[-1] == tag, (tag, self.open)
        self.open.pop()

    def handle_data(self, data):
        if self.open and self.open[-1] == "script":
            attributes, text = self.scripts[-1]
            self.scripts[-1] = (attributes, text + data)
        elif "style" not in self.open:
            self.words += data


def line(step, ms=100.0, **more):
    return {"runtime": "engine", "step": step, "step_ms": ms, "stall_time_ms": 0.0, "held_bytes": 6 << 20} | more


def plan(blocks=8, budget=6 << 20, link=100_000_000, compute_ms=5.0, **more):
    """As the library writes it: blocks of 2 MiB."""
    size = 2 << 20
    listed = [
        {"name": f"layer.{k}", "bytes": size, "resident_bytes": size // 4, "streamed_bytes": size - size // 4}
        for k in range(blocks)
    ]
    copied = blocks * size - budget
    return {
        "version": 1,
        "device": "host",
        "granularity_bytes": 4096,
        "page_bytes": 65536,
        "budget_bytes": budget,
        "share_bytes": budget,
        "link_bytes_per_second": link,
        "model_bytes": blocks * size,
        "resident_bytes": 4 << 20,
        "ring_bytes": 2 << 20,
        "bytes_per_step": copied,
        "step_ms": copied / link * 1e3,
        "bound_ms": copied / link * 1e3,
        "compute_ms": blocks * compute_ms,
        "smallest_budget_bytes": size,
        "smallest_budget_block": "layer.0",
        "blocks": listed,
        "uses": [{"block": k, "compute_ms": compute_ms} for k in range(blocks)],
    } | more


class ReportTest(CommandTest):
    def write(self, name, *lines):
        path = self.folder / name
        path.write_text("".join(json.dumps(item) + "\n" for item in lines), encoding="utf-8")
        return path

    def report(self, *files):
        self.succeed("report", *files, "-o", "report.html")
        return self.page()

    def page(self, name="report.html"):
        text = (self.folder / name).read_text(encoding="utf-8")
        page = Page(text)
        self.assertEqual(page.open, [])
        self.assertEqual(len(page.scripts), 3)
        self.assertNotRegex(page.scripts[0][1], "[<>&]")  # so that nothing in the data ends the element
        for tag, attributes in page.elements:
            for loading in ("src", "href", "srcset", "action", "data", "poster"):
                if loading in attributes:
                    self.assertTrue(attributes[loading].startswith("data:"), (tag, attributes))
        style = text[text.index("<style>") : text.index("</style>")]
        self.assertNotRegex(style, r"url\(|@import")
        self.assertIn("default-src 'none'", text)
        return page

    def reports_are_built(self):
        result = self.run_command("report", "/nonexistent", "-o", "x.html")
        return "built without reports" not in result.err

    def refuse_report(self, code, *files, says=()):
        self.refuse(code, "report", *files, "-o", "report.html", says=says)
        self.assertFalse((self.folder / "report.html").exists())

    def setUp(self):
        super().setUp()
        if not self.reports_are_built():
            self.assertEqual(self.run_command("report", "x", "-o", "x.html").code, FAILURE)
            self.skipTest("this command was built without reports")

    def test_run_makes_a_report_with_all_pictures(self):
        model = self.layered_model()
        self.succeed(
            *("run", model, "--budget", "50%", "--steps", "5", "--compute-ms", "20", "--json"),
            *("--device", "host", "--device-option", "bandwidth=1GB/s", "--report", "report.html"),
        )
        page = self.page()
        self.assertEqual(page.pictures, {f"{picture}-0" for picture in PICTURES})
        (run,) = page.data["runs"]
        self.assertEqual(run["label"], "model.safetensors")
        self.assertEqual(len(run["steps"]), 5)
        self.assertIn("embed", run["blocks"][0]["name"])
        self.assertNotIn('"', run["blocks"][0]["name"])
        total = sum(block["resident"] + block["streamed"] for block in run["blocks"])
        self.assertGreaterEqual(total, 12 << 20)
        self.assertTrue(any(block["resident"] for block in run["blocks"]))
        self.assertTrue(any(block["streamed"] for block in run["blocks"]))
        lanes = {piece[0] for piece in run["trace"]["slices"]}
        self.assertLessEqual({"copies", "in use", "computation"}, lanes)
        for _, _, begin, end, _, _ in run["trace"]["slices"]:
            self.assertTrue(0 <= begin <= end <= run["trace"]["ms"])
        self.assertTrue(run["trace"]["memory"])
        self.assertLessEqual(max(held for _, held in run["trace"]["memory"]), run["budget"])
        budgets = [point["budget"] for point in run["curve"]["points"]]
        self.assertEqual(budgets, sorted(budgets))
        self.assertIn(run["budget"], budgets)
        for point in run["curve"]["points"]:
            self.assertGreaterEqual(point["step"], point["bound"] * 0.999)
        self.assertIn("A step takes ", page.words)
        self.assertIn("The largest block, ", page.words)
        self.assertFalse(list(self.folder.glob("stagehand-report-*")))

    def test_computation_of_a_step_that_uses_blocks_twice(self):
        # The last block of the forward pass is also the first of the backward pass.
        self.succeed(
            *("run", self.layered_model(), "--budget", "50%", "--steps", "3", "--compute-ms", "20", "--json"),
            *("--order", "forward-backward", "--device", "host", "--report", "report.html"),
        )
        (run,) = self.page().data["runs"]
        computed = [piece for piece in run["trace"]["slices"] if piece[0] == "computation"]
        views = [piece for piece in run["trace"]["slices"] if piece[0] == "in use"]
        self.assertGreater(len(computed), len(run["blocks"]))
        self.assertLessEqual(len(computed), len(views))
        for before, after in itertools.pairwise(computed):
            self.assertLessEqual(before[3], after[2] + 1e-9)

    def test_files_of_a_run_make_the_same_report(self):
        model = self.layered_model()
        self.succeed(
            *("run", model, "--budget", "50%", "--steps", "3", "--json", "--device", "host"),
            *("--telemetry", "run.jsonl", "--trace", "trace.json", "--report", "own.html"),
        )
        page = self.report("run.jsonl", "trace.json")
        own = self.page("own.html")
        self.assertEqual(page.data["runs"][0]["blocks"], own.data["runs"][0]["blocks"])
        self.assertEqual(page.data["runs"][0]["trace"], own.data["runs"][0]["trace"])
        self.assertEqual(page.data["runs"][0]["curve"], own.data["runs"][0]["curve"])

    def test_words_of_a_step_that_is_link_bound(self):
        # 10 MiB at 100 MB/s take 105 ms, and 8 blocks compute for 5 ms each.
        page = self.report(
            self.write(
                "run.jsonl", line(1, plan=plan()), line(2), line(3, stall_time_ms=60.0), line(4, stall_time_ms=60.0)
            )
        )
        self.assertIn("A step takes 100 ms (median of 4 steps without the first).", page.words)
        self.assertIn("The step is link-bound: the copies take longer than the computation.", page.words)
        self.assertIn(
            "Waits of 60.0 ms a step (60.0 % of the step), of the calling thread. They are link-bound", page.words
        )
        self.assertRegex(page.words, r"A budget of [\d.]+ MiB \([\d.]+ MiB more\) would take the step from \d+ ms to ")
        self.assertIn("A link twice as fast would take the step from ", page.words)
        self.assertIn("The largest block, layer.0, has 2.00 MiB. Copying it whole costs 21.0 ms.", page.words)
        self.assertEqual(page.pictures, {"plan-0", "memory-0", "curve-0", "steps-0"})
        self.assertIn("No trace was given.", page.words)

    def test_words_of_a_step_that_is_compute_bound(self):
        made = plan(link=10_000_000_000, step_ms=40.0, bound_ms=40.0)
        page = self.report(self.write("run.jsonl", line(1, plan=made), line(2, 40.0), line(3, 41.0)))
        self.assertIn("The step is compute-bound", page.words)
        self.assertIn("A larger budget gains nothing", page.words)
        self.assertIn("A faster link gains nothing.", page.words)
        self.assertRegex(page.words, r"A budget of [\d.]+ MiB \([\d.]+ MiB less\) would do as well")

    def test_slow_source_is_named(self):
        page = self.report(self.write("run.jsonl", line(1, plan=plan()), line(2, 300.0), line(3, 300.0)))
        self.assertRegex(page.words, r"The plan foresees 105 ms, and the steps take 2\.\d+ × as long\.")
        self.assertIn("The bytes came at 35.0 MB/s on average, and the link has 100 MB/s.", page.words)

    def test_sets_are_told_over_all_steps(self):
        logged = {"name": "experts", "members": 8, "slots": 4, "uses": 10, "hits": 5, "evictions": 2}
        first = logged | {"slots": 2, "group_uses": [4, 6, 0], "group_hits": [4, 1, 0]}
        second = logged | {"group_uses": [5, 5, 0], "group_hits": [3, 2, 0]}
        page = self.report(self.write("run.jsonl", line(1, plan=plan()), line(2, sets=[first]), line(3, sets=[second])))
        self.assertIn(
            "Set experts: 4 of 8 members have slots. 50.0 % of 20 uses found their member in a slot, and 4 members "
            "made room for another. By group: from 27.3 % (group 1) to 77.8 % (group 0).",
            page.words,
        )
        self.assertIn("experts: 77.8 %, 27.3 %, -", page.words)

    def test_names_cannot_break_out(self):
        made = plan()
        made["blocks"][3]["name"] = HOSTILE
        made["blocks"][3]["bytes"] = 3 << 20
        made["smallest_budget_block"] = HOSTILE
        made["device"] = HOSTILE
        name = "<img src=x onerror=alert(1)>.jsonl"
        page = self.report(self.write(name, line(1, plan=made, runtime=HOSTILE), line(2, runtime=HOSTILE)))
        (run,) = page.data["runs"]
        self.assertEqual(run["blocks"][3]["name"], HOSTILE)
        self.assertEqual(run["runtime"], HOSTILE)
        self.assertIn(name, page.words)
        self.assertIn("</script><script>alert(1)</script>", page.words)
        self.assertNotIn("img", {tag for tag, _ in page.elements})
        self.assertFalse([a for _, a in page.elements if any(key.startswith("on") for key in a)])

    def test_cut_line_is_left_out(self):
        path = self.write("run.jsonl", line(1, plan=plan()), line(2), line(3))
        whole = path.read_text()
        path.write_text(whole[:-30])
        page = self.report(path)
        self.assertEqual(len(page.data["runs"][0]["steps"]), 2)
        self.assertIn("The last line of the telemetry is incomplete", page.words)
        path.write_text(whole[:-1])  # only the newline is missing
        page = self.report(path)
        self.assertEqual(len(page.data["runs"][0]["steps"]), 3)
        self.assertNotIn("incomplete", page.words)

    def test_the_page_does_not_replace_what_it_is_made_of(self):
        path = self.write("run.jsonl", line(1, plan=plan()), line(2), line(3))
        before = path.read_bytes()
        self.refuse(USAGE, "report", path, "-o", path, says=["would replace"])
        self.assertEqual(path.read_bytes(), before)

    def test_runs_beside_each_other(self):
        first = self.write("first.jsonl", line(1, plan=plan()), line(2, 200.0), line(3, 200.0))
        second = self.write("second.jsonl", line(1, plan=plan(budget=8 << 20)), line(2, 100.0), line(3, 100.0))
        page = self.report(first, second)
        self.assertIn("The runs beside each other", page.words)
        self.assertIn("0.500 ×", page.words)
        self.assertEqual([run["label"] for run in page.data["runs"]], ["first.jsonl", "second.jsonl"])
        self.assertLessEqual({"compare", "plan-0", "plan-1", "curve-1"}, page.pictures)
        page = self.report(first, first)  # told apart by nothing, and still a page
        self.assertEqual(len(page.data["runs"]), 2)

    def test_telemetry_without_a_plan(self):
        page = self.report(self.write("run.jsonl", line(1), line(2)))
        self.assertEqual(page.pictures, {"memory-0", "steps-0"})
        self.assertIn("The telemetry holds no plan", page.words)

    def test_plan_without_order_or_lists(self):
        page = self.report(self.write("run.jsonl", line(1, plan=plan(uses=[])), line(2)))
        self.assertIn("The order of use was not known", page.words)
        made = plan()
        del made["blocks"], made["uses"]
        page = self.report(self.write("run.jsonl", line(1, plan=made), line(2)))
        self.assertIn("does not list the blocks", page.words)
        page = self.report(self.write("run.jsonl", line(1, plan={}), line(2)))
        self.assertIn("The telemetry holds no plan", page.words)

    def test_plan_that_the_simulation_refuses_is_said(self):
        page = self.report(self.write("run.jsonl", line(1, plan=plan(granularity_bytes=3, page_bytes=7)), line(2)))
        self.assertIn("Other budgets cannot be computed: ", page.words)

    def test_unknown_members_are_ignored(self):
        page = self.report(self.write("run.jsonl", line(1, plan=plan(new=[1]), newer={"x": 1}), line(2)))
        self.assertEqual(len(page.data["runs"][0]["steps"]), 2)

    def test_bad_telemetry_is_refused(self):
        self.refuse_report(MODEL, "/nonexistent/run.jsonl", says=["/nonexistent/run.jsonl: No such file"])
        for lines, says in [
            ([], "run.jsonl holds no step"),
            ([line(1), "text", line(2)], "run.jsonl: line 2 is not a JSON object"),
            ([{"step": 1}], 'line 1: "step_ms" is missing'),
            ([line("one")], 'line 1: "step" is not a whole number'),
            ([line(-1)], 'line 1: "step" is not a whole number'),
            ([line(1, "long")], 'line 1: "step_ms" is not a number'),
            ([line(1, runtime=3)], 'line 1: "runtime" is not a text'),
            (
                [line(1, plan=plan(version=2))],
                "line 1, plan: its plan has version 2, but this command reads versions up to 1",
            ),
            ([line(1, plan=[1])], "line 1, plan is not a JSON object"),
            ([line(1, plan=plan() | {"blocks": [{"name": "x", "bytes": 0}]})], '"bytes" is 0'),
            ([line(1, plan=plan(uses=[{"block": 8}]))], '"block" is 8, but the plan has 8 blocks'),
            ([line(1, sets=[{"group_uses": ["x"]}])], 'line 1, sets: "group_uses" holds what is not a count'),
            ([line(1, sets=[{"group_uses": [1]}])], 'line 1, sets: "group_hits" has another length'),
            ([{"step": 1, "activations_saved": 3}], "line 1 is of a spiller"),
        ]:
            with self.subTest(says=says):
                self.refuse_report(MODEL, self.write("run.jsonl", *lines), says=[says])
        path = self.folder / "run.jsonl"
        path.write_bytes(b'{"step": 1, "step_ms": 1}\nnot json\n{"step": 2, "step_ms": 1}\n')
        self.refuse_report(MODEL, path, says=["line 2 is not a JSON object: 'not json'"])
        path.write_bytes(b"\x00\xff\n\n")
        self.refuse_report(MODEL, path, says=["line 1 is not a JSON object"])
        path.write_bytes(b"[" * 100_000)
        self.refuse_report(MODEL, path, says=["line 1 is not a JSON object"])

    def test_bad_traces_are_refused(self):
        run = self.write("run.jsonl", line(1), line(2))
        trace = self.folder / "trace.json"
        beginning = '{"displayTimeUnit":"ms","traceEvents":[\n'
        trace.write_text(beginning + "\n]}\n")
        self.refuse_report(USAGE, trace, run, says=["is a trace; give it behind the telemetry of its run"])
        trace.write_text(beginning + "garbage,\n]}\n")
        self.refuse_report(MODEL, run, trace, says=["trace.json: line 2 is not an event of a trace"])
        trace.write_text(
            beginning + '{"name":"process_name","ph":"M","pid":1,"args":{"name":"another"}},\n'
            '{"name":"step 1","ph":"X","pid":1,"tid":1,"ts":0,"dur":5,"args":{}}\n]}\n'
        )
        self.refuse_report(MODEL, run, trace, says=["holds no step of runtime 'engine'"])
        trace.write_text(trace.read_text().replace("another", "engine"))
        self.refuse_report(USAGE, run, trace, trace, says=["is a second trace of"])

    def test_trace_of_a_killed_process(self):
        run = self.write("run.jsonl", line(1), line(2))
        trace = self.folder / "trace.json"
        trace.write_text(
            '{"displayTimeUnit":"ms","traceEvents":[\n'
            '{"name":"process_name","ph":"M","pid":1,"args":{"name":"engine"}},\n'
            '{"name":"block \\"layer.0\\"","ph":"X","pid":1,"tid":3,"ts":100,"dur":50,"args":{"bytes":7,"pieces":1}},\n'
            '{"name":"layer.1","ph":"X","pid":1,"tid":19,"ts":120,"dur":500,"args":{"bytes":7,"pieces":1}},\n'
            '{"name":"step 1","ph":"X","pid":1,"tid":1,"ts":90,"dur":200,"args":{}},\n'
            '{"name":"held bytes","ph":"C","pid":1,"ts":95,"args":{"value":4096}},\n'
            '{"name":"step 2","ph":"X","pid":1,"tid":1,"ts":3'
        )
        page = self.report(run, trace)
        found = page.data["runs"][0]["trace"]
        self.assertEqual([piece[0] for piece in found["slices"]], ["copies", "copies"])
        self.assertEqual([piece[1] for piece in found["slices"]], [0, 1])
        self.assertEqual([piece[4] for piece in found["slices"]], ["layer.0", "layer.1"])
        self.assertAlmostEqual(found["slices"][1][3], 0.2)  # ends with the step
        self.assertEqual(found["memory"][0][1], 4096)
        self.assertIn("The trace has no end", page.words)

    def test_very_many_steps_and_blocks_are_thinned_out(self):
        made = plan(blocks=1000, budget=600 << 20)
        steps = [line(step, 50.0 + (step == 777)) for step in range(2, 5001)]
        page = self.report(self.write("run.jsonl", line(1, plan=made), *steps))
        (run,) = page.data["runs"]
        self.assertLessEqual(len(run["steps"]), 2000)
        self.assertIn(777, [step[0] for step in run["steps"]])
        self.assertLessEqual(len(run["blocks"]), 400)
        self.assertEqual(sum(block["count"] for block in run["blocks"]), 1000)

    def test_output_that_cannot_be_written(self):
        run = self.write("run.jsonl", line(1), line(2))
        self.refuse(OUTPUT, "report", run, "-o", "/nonexistent/x.html", says=["/nonexistent/x.html: No such file"])
        self.refuse(OUTPUT, "report", run, "-o", "/dev/full", says=["/dev/full: No space left"])
        self.refuse(
            OUTPUT,
            *("run", self.layered_model(), "--budget", "50%", "--steps", "1", "--report", "/nonexistent/x.html"),
            says=["--report /nonexistent/x.html: No such file"],
        )

    def test_drawing_needs_nothing_that_the_page_lacks(self):
        page = self.report(self.write("run.jsonl", line(1, plan=plan()), line(2)))
        script = page.scripts[2][1]
        self.assertNotRegex(script, r"https?:|fetch\(|XMLHttpRequest|import\(|localStorage")
        self.assertTrue(re.search(r'version:\s*"3\.', page.scripts[1][1]))
        self.assertIn("Mike Bostock", page.words)


if __name__ == "__main__":
    harness.main()
