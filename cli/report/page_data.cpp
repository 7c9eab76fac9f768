// The figures for the page's script.
#include "report/page.h"

#include <algorithm>

#include <fmt/format.h>

#include "json_output.h"

namespace stagehand::cli {

namespace {

constexpr std::size_t most_points = 2'000;
constexpr std::size_t most_blocks = 400;

// The slowest step of each few neighbours if there are very many.
Json steps_json(const RunFile& run) {
    Json points = Json::array();
    const std::size_t each = (run.steps.size() + most_points - 1) / most_points;
    for (std::size_t i = 0; i < run.steps.size(); i += each) {
        const auto begin = run.steps.begin() + static_cast<std::ptrdiff_t>(i);
        const auto end = run.steps.begin() + static_cast<std::ptrdiff_t>(std::min(i + each, run.steps.size()));
        const LoggedStep& step = *std::max_element(
            begin, end, [](const LoggedStep& left, const LoggedStep& right) { return left.ms < right.ms; });
        points.push_back({step.step, step.ms, step.stall_ms, step.held_bytes});
    }
    return points;
}

// Neighbours share a bar if there are very many.
Json blocks_json(const LoggedPlan& plan) {
    Json bars = Json::array();
    const std::size_t each = (plan.blocks.size() + most_blocks - 1) / most_blocks;
    for (std::size_t i = 0; i < plan.blocks.size(); i += each) {
        const std::size_t end = std::min(i + each, plan.blocks.size());
        std::uint64_t resident = 0;
        std::uint64_t streamed = 0;
        std::uint64_t unordered = 0;
        std::uint64_t count = 0;
        for (std::size_t k = i; k < end; ++k) {
            const LoggedBlock& block = plan.blocks[k];
            resident += block.unordered ? 0 : block.resident_bytes;
            streamed += block.unordered ? 0 : block.bytes - block.resident_bytes;
            unordered += block.unordered ? block.bytes : 0;
            count += block.packed;
        }
        bars.push_back({{"name", plan.blocks[i].name},
                        {"last", end - i > 1 ? plan.blocks[end - 1].name : ""},
                        {"count", count},
                        {"resident", resident},
                        {"streamed", streamed},
                        {"unordered", unordered}});
    }
    return bars;
}

Json curve_json(const WhatIf& what_if) {
    const Curve& curve = what_if.curve;
    Json points = Json::array();
    for (const CurvePoint& point : curve.points) {
        points.push_back({{"budget", point.budget_bytes},
                          {"step", point.step_ms},
                          {"bound", point.bound_ms},
                          {"copied", point.bytes_per_step}});
    }
    return {{"points", std::move(points)},
            {"budget", curve.chosen.budget_bytes},
            {"step", curve.chosen.step_ms},
            {"compute", curve.compute_ms},
            {"copyAll", curve.copy_all_ms}};
}

Json trace_json(const TraceFile& trace) {
    Json slices = Json::array();
    for (const TraceSlice& slice : trace.slices)
        slices.push_back({to_string(slice.lane), slice.row, slice.begin_ms, slice.end_ms, slice.name, slice.bytes});
    Json memory = Json::array();
    for (const TraceMemory& point : trace.memory) memory.push_back({point.ms, point.bytes});
    return {{"step", trace.step},
            {"ms", trace.step_ms},
            {"begin", trace.begin_ms},
            {"slices", std::move(slices)},
            {"memory", std::move(memory)}};
}

Json run_json(const ReportedRun& reported) {
    const RunFile& run = reported.run;
    Json json = {{"label", run.label},
                 {"runtime", run.runtime},
                 {"median", median(later_steps(run, &LoggedStep::ms))},
                 {"steps", steps_json(run)}};
    if (run.plan) {
        json["budget"] = run.plan->share_bytes;
        json["deviceBudget"] = run.plan->budget_bytes;
        json["planned"] = run.plan->step_ms;
        json["bound"] = run.plan->bound_ms;
        if (!run.plan->blocks.empty()) json["blocks"] = blocks_json(*run.plan);
    }
    if (!reported.what_if.curve.points.empty()) json["curve"] = curve_json(reported.what_if);
    if (reported.trace) json["trace"] = trace_json(*reported.trace);
    return json;
}

}  // namespace

std::string page_data(const std::vector<ReportedRun>& runs) {
    Json json = {{"runs", Json::array()}};
    for (const ReportedRun& reported : runs) json["runs"].push_back(run_json(reported));
    const std::string text = json.dump(-1, ' ', true, Json::error_handler_t::replace);
    // These characters are inside strings only. Without them nothing in a name ends the element or begins a comment.
    std::string result;
    result.reserve(text.size());
    for (const char character : text) {
        if (character == '<' || character == '>' || character == '&')
            result += fmt::format("\\u{:04x}", static_cast<unsigned>(character));
        else
            result += character;
    }
    return result;
}

}  // namespace stagehand::cli
