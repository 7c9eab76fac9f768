#include "report/page.h"

#include <algorithm>

#include <fmt/format.h>

#include "chart.h"
#include "model/quantity.h"
#include "units.h"

namespace stagehand::cli {

namespace {

std::string sentences(const std::vector<std::string>& items) {
    std::string result = "<ul>\n";
    for (const std::string& item : items) result += "<li>" + markup(item) + "</li>\n";
    return result + "</ul>\n";
}

// The script draws into the element with this id. A figure without data has no element.
std::string figure(std::size_t run, const char* what, const char* title, const std::string& caption) {
    return fmt::format(
        "<figure><h4>{}</h4><div class=\"chart\" id=\"{}-{}\" data-label=\"{}\"></div><figcaption>{}</figcaption>"
        "</figure>\n",
        title, what, run, title, markup(caption));
}

std::string missing(const char* title, const std::string& why) {
    return fmt::format("<div class=\"missing\"><h4>{}</h4><p>{}</p></div>\n", title, markup(why));
}

std::string plan_figure(std::size_t index, const RunFile& run) {
    constexpr const char* title = "The plan: what of each block stays on the device";
    if (!run.plan || run.plan->blocks.empty())
        return missing(title, "The telemetry does not list the blocks of the plan.");
    return figure(index, "plan", title,
                  fmt::format("{} of {} stay resident. The rest passes through a ring of {}. A bar is a block, in the "
                              "order of registration.",
                              model::format_bytes(run.plan->resident_bytes), model::format_bytes(run.plan->model_bytes),
                              model::format_bytes(run.plan->ring_bytes)));
}

std::string timeline_figure(std::size_t index, const ReportedRun& reported) {
    constexpr const char* title = "The timeline of a step";
    if (!reported.trace) {
        return missing(title,
                       "No trace was given. A trace (stagehand run --trace, or STAGEHAND_TRACE=FILE for any "
                       "program) shows the copies, the computation and the waits of a step.");
    }
    const TraceFile& trace = *reported.trace;
    std::string caption = fmt::format(
        "{}: {}, the step of median length of {} in the trace. A slice in use reaches from the acquire of a block to "
        "its release on the host.",
        trace.step, time_text(trace.step_ms), counted(trace.steps, "step"));
    if (std::any_of(trace.slices.begin(), trace.slices.end(),
                    [](const TraceSlice& slice) { return slice.lane == Lane::compute; }))
        caption += " The computation has the times of the plan, each as early as its block allows.";
    if (trace.left_out > 0) caption += fmt::format(" {} are left out.", counted(trace.left_out, "further slice"));
    if (trace.cut) caption += " The trace has no end: the process was killed.";
    return figure(index, "timeline", title, caption);
}

std::string memory_figure(std::size_t index, const ReportedRun& reported) {
    constexpr const char* title = "Memory over time against the budget";
    const bool traced = reported.trace && !reported.trace->memory.empty();
    const bool logged = std::any_of(reported.run.steps.begin(), reported.run.steps.end(),
                                    [](const LoggedStep& step) { return step.held_bytes > 0; });
    if (!traced && !logged)
        return missing(title, "Neither the telemetry nor a trace tells the device memory that is held.");
    return figure(index, "memory", title,
                  traced ? "Device memory that the runtime holds, by the trace. The band is the step of the timeline."
                         : "Device memory that the runtime holds at the end of each step.");
}

std::string curve_figure(std::size_t index, const ReportedRun& reported) {
    constexpr const char* title = "Time of a step against the budget";
    if (reported.what_if.curve.points.empty()) return missing(title, reported.what_if.problem);
    return figure(index, "curve", title,
                  "Each circle is a plan for another budget, for the same blocks and the same link. No plan is faster "
                  "than the bound, max(compute, (W − M) / link), where W is the model and M the budget. The diamond is "
                  "the measured step.");
}

std::string facts(const RunFile& run) {
    std::string rows;
    const auto add = [&](const char* name, const std::string& value) {
        rows += fmt::format("<tr><th>{}</th><td>{}</td></tr>\n", name, markup(value));
    };
    add("runtime", run.runtime);
    add("steps", count_text(run.steps.size()));
    if (run.plan) {
        const LoggedPlan& plan = *run.plan;
        add("device", plan.device);
        add("budget", plan.share_bytes == plan.budget_bytes
                          ? model::format_bytes(plan.budget_bytes)
                          : fmt::format("{}, of which this runtime has {}", model::format_bytes(plan.budget_bytes),
                                        model::format_bytes(plan.share_bytes)));
        add("model", model::format_bytes(plan.model_bytes));
        add("resident",
            fmt::format("{} ({})", model::format_bytes(plan.resident_bytes),
                        share_text(static_cast<double>(plan.resident_bytes), static_cast<double>(plan.model_bytes))));
        add("ring", model::format_bytes(plan.ring_bytes));
        if (plan.unordered_bytes > 0) add("for blocks outside the order", model::format_bytes(plan.unordered_bytes));
        add("link", model::format_rate(static_cast<double>(plan.link_bytes_per_second)));
    }
    for (const LoggedSet& set : run.sets) {
        if (set.group_uses.size() < 2) continue;
        std::string rates;
        for (std::size_t i = 0; i < set.group_uses.size(); ++i) {
            rates += (i == 0 ? "" : ", ") +
                     share_text(static_cast<double>(set.group_hits[i]), static_cast<double>(set.group_uses[i]));
        }
        add("hits of each group", set.name.empty() ? rates : set.name + ": " + rates);
    }
    return "<table class=\"facts\">\n" + rows + "</table>\n";
}

std::string run_section(std::size_t index, const ReportedRun& reported) {
    const RunFile& run = reported.run;
    std::string result = fmt::format("<section>\n<h2>{}</h2>\n<p class=\"headline\">{}</p>\n", markup(run.label),
                                     markup(reported.advice.headline));
    if (run.cut) {
        result +=
            "<p class=\"note\">The last line of the telemetry is incomplete and is left out: the process was "
            "killed, or still writes.</p>\n";
    }
    result += "<div class=\"words\"><div>\n<h3>How the steps went</h3>\n" + sentences(reported.advice.course) +
              "</div><div>\n<h3>What would help, by the plan</h3>\n" + sentences(reported.advice.changes) +
              "</div></div>\n" + facts(run);
    result += plan_figure(index, run) + timeline_figure(index, reported) + memory_figure(index, reported) +
              curve_figure(index, reported) +
              figure(index, "steps", "Time of each step",
                     "The line is the step, and the area below it the waits of the calling thread.");
    return result + "</section>\n";
}

std::string comparison(const std::vector<ReportedRun>& runs) {
    std::string rows;
    const double first = median(later_steps(runs.front().run, &LoggedStep::ms));
    for (const ReportedRun& reported : runs) {
        const RunFile& run = reported.run;
        const double step_ms = median(later_steps(run, &LoggedStep::ms));
        const auto of_plan = [&](auto text) { return run.plan ? text(*run.plan) : std::string("–"); };
        rows += fmt::format(
            "<tr><th>{}</th><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td></tr>\n",
            markup(run.label), count_text(run.steps.size()), time_text(step_ms), ratio_text(step_ms, first),
            of_plan([](const LoggedPlan& plan) { return time_text(plan.bound_ms); }),
            time_text(median(later_steps(run, &LoggedStep::stall_ms))),
            of_plan([](const LoggedPlan& plan) { return model::format_bytes(plan.bytes_per_step); }),
            of_plan([](const LoggedPlan& plan) { return model::format_bytes(plan.share_bytes); }));
    }
    return "<section>\n<h2>The runs beside each other</h2>\n<div class=\"wide\"><table "
           "class=\"runs\">\n<tr><th>run</th>"
           "<th>steps</th><th>step</th><th>of the first run</th><th>bound</th><th>waits</th><th>copied a step</th>"
           "<th>budget</th></tr>\n" +
           rows +
           "</table></div>\n<figure><h4>Time of each step</h4><div class=\"chart\" id=\"compare\" data-label=\"Time of "
           "each step of all runs\"></div><figcaption>Each run has a colour, a dash and a mark of its own."
           "</figcaption></figure>\n</section>\n";
}

}  // namespace

std::string report_page(const std::vector<ReportedRun>& runs) {
    const std::string title = runs.size() == 1 ? runs.front().run.label : fmt::format("{} runs", runs.size());
    std::string page = fmt::format(
        "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n"
        "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; script-src 'unsafe-inline'; "
        "style-src 'unsafe-inline'; img-src data:\">\n"
        "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n<link rel=\"icon\" "
        "href=\"data:,\">\n"
        "<title>{} – stagehand report</title>\n<style>\n",
        markup(title));
    page += page_style;
    page +=
        "</style>\n</head>\n<body>\n<header><p>stagehand report</p></header>\n<noscript><p class=\"note\">The "
        "pictures need JavaScript. The words and the tables do not.</p></noscript>\n<main>\n";
    if (runs.size() > 1) page += comparison(runs);
    for (std::size_t i = 0; i < runs.size(); ++i) page += run_section(i, runs[i]);
    page += fmt::format(
        "</main>\n<footer><details><summary>Drawn with D3 {}, which this file "
        "contains</summary><pre>{}</pre></details></footer>\n",
        markup(plotting_version), markup(plotting_licence));
    page += "<script type=\"application/json\" id=\"data\">" + page_data(runs) + "</script>\n<script>\n";
    page += plotting_script;
    page += "\n</script>\n<script>\n";
    page += page_script;
    return page + "\n</script>\n</body>\n</html>\n";
}

}  // namespace stagehand::cli
