#include "plan_report.h"

#include <algorithm>

#include <fmt/format.h>

#include "json_output.h"
#include "model/layer_names.h"
#include "model/quantity.h"
#include "table.h"
#include "units.h"

namespace stagehand::cli {

namespace {

constexpr std::size_t most_rows = 40;
constexpr std::size_t name_columns = 60;

double ms(std::uint64_t ns) { return static_cast<double>(ns) / 1e6; }

// Neighbours of one family and size, of which about as many bytes are resident: the blocks [begin, end).
struct Run {
    std::size_t begin = 0;
    std::size_t end = 0;
    BlockPart least;
    BlockPart most;
    std::uint64_t resident_bytes = 0;  // the sum over all these blocks

    // Whether `part` of a block of `bytes` is like the others. They may differ by two pages, but by no more than a
    // tenth of the block.
    bool takes(const BlockPart& part, std::uint64_t bytes, std::uint64_t page) const {
        return std::max(most.resident_bytes, part.resident_bytes) -
                   std::min(least.resident_bytes, part.resident_bytes) <=
               std::min(2 * page, bytes / 10);
    }

    void add(const BlockPart& part) {
        ++end;
        least.resident_bytes = std::min(least.resident_bytes, part.resident_bytes);
        least.streamed_bytes = std::min(least.streamed_bytes, part.streamed_bytes);
        most.resident_bytes = std::max(most.resident_bytes, part.resident_bytes);
        most.streamed_bytes = std::max(most.streamed_bytes, part.streamed_bytes);
        resident_bytes += part.resident_bytes;
    }
};

std::string range_text(std::uint64_t least, std::uint64_t most) {
    const std::string from = model::format_bytes(least);
    const std::string to = model::format_bytes(most);
    return from == to ? to : fmt::format("{} … {}", from, to);
}

std::vector<Run> runs(const PlanReport& report, const BlockTable& table, bool each) {
    std::vector<Run> result;
    for (std::size_t i = 0; i < table.blocks.size(); ++i) {
        const BlockPart& part = report.parts[i];
        const bool like = !each && i > 0 && table.blocks[i].bytes == table.blocks[i - 1].bytes &&
                          table.blocks[i].unordered == table.blocks[i - 1].unordered &&
                          model::family_of(table.blocks[i].name) == model::family_of(table.blocks[i - 1].name) &&
                          result.back().takes(part, table.blocks[i].bytes, report.page_bytes);
        if (!like) result.push_back({i, i, part, part, 0});
        result.back().add(part);
    }
    return result;
}

std::string blocks_text(const PlanReport& report, const BlockTable& table, bool all_blocks, const Terminal& terminal) {
    Table text = {{"block", Align::left},     {"count", Align::right}, {"size", Align::right},
                  {"resident", Align::right}, {"share", Align::right}, {"streamed", Align::right}};
    const std::vector<Run> rows = runs(report, table, all_blocks);
    const std::size_t shown = all_blocks ? rows.size() : std::min(rows.size(), most_rows);
    for (std::size_t i = 0; i < shown; ++i) {
        const Run& run = rows[i];
        const model::Block& block = table.blocks[run.begin];
        std::string name = shortened(block.name, name_columns);
        if (run.end - run.begin > 1) {
            name = shortened(block.name, name_columns / 2) + " … " +
                   shortened(table.blocks[run.end - 1].name, name_columns / 2);
        }
        const std::size_t count = run.end - run.begin;
        if (block.unordered) {
            text.add({name, count_text(count), model::format_bytes(block.bytes), "-", "-", "unordered"});
            continue;
        }
        text.add({name, count_text(count), model::format_bytes(block.bytes),
                  range_text(run.least.resident_bytes, run.most.resident_bytes),
                  share_text(static_cast<double>(run.resident_bytes),
                             static_cast<double>(count) * static_cast<double>(block.bytes)),
                  range_text(run.least.streamed_bytes, run.most.streamed_bytes)});
    }
    std::string result = text.text(terminal);
    if (shown < rows.size()) {
        result += fmt::format("and {} (--all-blocks lists every block)\n",
                              counted(table.blocks.size() - rows[shown].begin, "more block"));
    }
    return result;
}

std::string kinds_text(const PlanReport& report, const Terminal& terminal) {
    Table text = {{"kind", Align::left},          {"of the steps", Align::right}, {"compute", Align::right},
                  {"step time", Align::right},    {"bound", Align::right},        {"ratio", Align::right},
                  {"planned alone", Align::right}};
    for (const KindReport& kind : report.kinds) {
        text.add({kind.name, share_text(kind.weight, 1), time_text(kind.compute_ms), time_text(kind.step_ms),
                  time_text(kind.bound_ms), kind.bound_ms >= 1e-3 ? ratio_text(kind.step_ms, kind.bound_ms) : "-",
                  time_text(kind.alone_ms)});
    }
    return text.text(terminal);
}

std::string curve_text(const PlanReport& report, const Terminal& terminal) {
    Table text = {{"budget", Align::right},   {"of model", Align::right}, {"step time", Align::right},
                  {"bound", Align::right},    {"ratio", Align::right},    {"copied", Align::right},
                  {"resident", Align::right}, {"ring", Align::right},     {"", Align::left}};
    for (const CurvePoint& point : report.curve.points) {
        const bool chosen = point.budget_bytes == report.curve.chosen.budget_bytes;
        const bool smallest = point.budget_bytes == report.curve.smallest_budget_bytes;
        text.add({model::format_bytes(point.budget_bytes),
                  share_text(static_cast<double>(point.budget_bytes), static_cast<double>(report.curve.model_bytes)),
                  time_text(point.step_ms), time_text(point.bound_ms),
                  // A ratio to a bound that is shown as 0 ms would confuse.
                  point.bound_ms >= 1e-3 ? ratio_text(point.step_ms, point.bound_ms) : "-",
                  model::format_bytes(point.bytes_per_step), model::format_bytes(point.resident_bytes),
                  model::format_bytes(point.ring_bytes),
                  chosen     ? "asked for"
                  : smallest ? "the smallest"
                             : ""});
    }
    return text.text(terminal);
}

std::string rate_text(std::uint64_t bytes_per_second) {
    return model::format_rate(static_cast<double>(bytes_per_second));
}

// Whether weights cross the link packed.
bool brings_packed(const PlanReport& report) { return report.plain && report.plan.unpack_bytes > 0; }

void add_memory_facts(const PlanReport& report, const BlockTable& table, Facts& facts) {
    const sh_plan_info& plan = report.plan;
    const auto bytes = [](std::uint64_t count) { return model::format_bytes(count); };
    const auto share = [&](std::uint64_t part) {
        return share_text(static_cast<double>(part), static_cast<double>(plan.model_bytes)) + " of the model";
    };
    facts.add("model", bytes(plan.model_bytes), fmt::format("{}, {}", report.model, description(table)));
    if (table.is_packed()) {
        facts.add("packed", bytes(table.packed_bytes),
                  brings_packed(report) ? fmt::format("the device unpacks {}", rate_text(plan.unpack_bytes_per_second))
                                        : "the plan is for plain weights, which the host unpacks");
    }
    facts.add("budget", bytes(report.target.budget_bytes),
              fmt::format("{}, in pages of {}", share(report.target.budget_bytes), bytes(report.page_bytes)));
    facts.add("smallest budget", bytes(plan.smallest_budget_bytes),
              report.smallest_budget_block.empty() ? "" : fmt::format("because of {}", report.smallest_budget_block));
    facts.add("resident", bytes(plan.resident_bytes),
              fmt::format("{}; {} entirely", share(plan.resident_bytes), counted(plan.resident_blocks, "block")));
    facts.add("ring", bytes(plan.ring_bytes),
              plan.streamed_blocks > 0
                  ? fmt::format("shared by the streamed parts of {}", counted(plan.streamed_blocks, "block"))
                  : "nothing is streamed");
    if (brings_packed(report)) {
        facts.add("kept packed", bytes(plan.packed_resident_bytes), "unpacked into the ring for each use");
        facts.add("arriving", bytes(plan.unpack_bytes), "in which packed weights arrive");
    }
    if (table.unordered_blocks > 0) {
        facts.add("unordered", bytes(plan.unordered_bytes),
                  fmt::format("shared by {} outside the order, {} together", counted(table.unordered_blocks, "block"),
                              bytes(table.unordered_bytes)));
    }
    if (plan.padding_bytes > 0)
        facts.add("padding", bytes(plan.padding_bytes), "bytes in the pages of the blocks that no block covers");
}

void add_time_facts(const PlanReport& report, Facts& facts) {
    const sh_plan_info& plan = report.plan;
    const bool packed = brings_packed(report);
    facts.add("copied a step", model::format_bytes(plan.bytes_per_step),
              fmt::format("{}no plan copies less than {}", packed ? "when unpacked; " : "",
                          model::format_bytes(plan.bound_bytes_per_step)));
    facts.add("step time", time_text(ms(plan.step_ns)),
              ms(plan.bound_ns) >= 1e-3 ? fmt::format("by the plan's recurrence, {} of the bound",
                                                      ratio_text(ms(plan.step_ns), ms(plan.bound_ns)))
                                        : "by the plan's recurrence");
    const std::string unpacking = packed ? fmt::format(", (W − M) / {}", rate_text(plan.unpack_bytes_per_second)) : "";
    facts.add("bound", time_text(ms(plan.bound_ns)),
              fmt::format("max(compute {}, ({} − M) / {}{}), at the {} speed of the link", time_text(report.compute_ms),
                          packed ? "cW" : "W", rate_text(plan.link_bytes_per_second), unpacking,
                          report.target.link_measured ? "measured" : "given"));
    if (packed) {
        facts.add(
            "as plain", time_text(ms(report.plain->step_ns)),
            fmt::format("the plan for plain weights, which copies {} a step; its bound is {}",
                        model::format_bytes(report.plain->bytes_per_step), time_text(ms(report.plain->bound_ns))));
        return;
    }
    facts.add("bound of plans", time_text(ms(plan.plan_bound_ns)),
              ms(plan.plan_bound_ns) >= 1e-3 ? fmt::format("no plan of whole pages is faster; the step time is {}",
                                                           ratio_text(ms(plan.step_ns), ms(plan.plan_bound_ns)))
                                             : "no plan of whole pages is faster");
}

std::string facts_text(const PlanReport& report, const BlockTable& table, const Terminal& terminal) {
    Facts facts;
    add_memory_facts(report, table, facts);
    add_time_facts(report, facts);
    facts.add(
        "device", report.target.device,
        fmt::format("link {}, {} order", report.target.link_measured ? "measured" : "given", to_string(report.order)));
    return facts.text(terminal);
}

Json kinds_json(const std::vector<KindReport>& kinds) {
    Json list = Json::array();
    for (const KindReport& kind : kinds) {
        list.push_back({{"name", kind.name},
                        {"weight", kind.weight},
                        {"compute_ms", kind.compute_ms},
                        {"step_ms", kind.step_ms},
                        {"bound_ms", kind.bound_ms},
                        {"alone_ms", kind.alone_ms}});
    }
    return list;
}

Json packed_json(const PlanReport& report, const BlockTable& table) {
    const sh_plan_info& plain = *report.plain;
    return {{"model_bytes", table.packed_bytes},
            {"resident_bytes", report.plan.packed_resident_bytes},
            {"unpack_bytes", report.plan.unpack_bytes},
            {"unpack_bytes_per_second", report.plan.unpack_bytes_per_second},
            {"plain",
             {{"step_ms", ms(plain.step_ns)},
              {"bound_ms", ms(plain.bound_ns)},
              {"plan_bound_ms", ms(plain.plan_bound_ns)},
              {"bytes_per_step", plain.bytes_per_step},
              {"resident_bytes", plain.resident_bytes},
              {"ring_bytes", plain.ring_bytes}}}};
}

Json curve_json(const Curve& curve) {
    Json points = Json::array();
    for (const CurvePoint& point : curve.points) {
        points.push_back({{"budget_bytes", point.budget_bytes},
                          {"step_ms", point.step_ms},
                          {"bound_ms", point.bound_ms},
                          {"plan_bound_ms", point.plan_bound_ms},
                          {"bytes_per_step", point.bytes_per_step},
                          {"resident_bytes", point.resident_bytes},
                          {"ring_bytes", point.ring_bytes}});
    }
    return points;
}

}  // namespace

std::string json_text(const PlanReport& report, const BlockTable& table) {
    const sh_plan_info& plan = report.plan;
    Json json = {
        {"model", report.model},
        {"format", model::to_string(table.model.format)},
        {"files", table.model.files.size()},
        {"tensors", table.model.tensors.size()},
        {"device", report.target.device},
        {"order", to_string(report.order)},
        {"step_ms", ms(plan.step_ns)},
        {"bound_ms", ms(plan.bound_ns)},
        {"plan_bound_ms", ms(plan.plan_bound_ns)},
        {"compute_ms", report.compute_ms},
        {"link_bytes_per_second", plan.link_bytes_per_second},
        {"link_measured", report.target.link_measured},
        {"model_bytes", plan.model_bytes},
        {"budget_bytes", report.target.budget_bytes},
        {"page_bytes", report.page_bytes},
        {"bytes_per_step", plan.bytes_per_step},
        {"bound_bytes_per_step", plan.bound_bytes_per_step},
        {"resident_bytes", plan.resident_bytes},
        {"ring_bytes", plan.ring_bytes},
        {"unordered_bytes", plan.unordered_bytes},
        {"padding_bytes", plan.padding_bytes},
        {"smallest_budget_bytes", plan.smallest_budget_bytes},
        {"smallest_budget_block", report.smallest_budget_block},
        {"blocks", table.blocks.size()},
        {"resident_blocks", plan.resident_blocks},
        {"streamed_blocks", plan.streamed_blocks},
        {"unordered_blocks", table.unordered_blocks},
        {"unordered_block_bytes", table.unordered_bytes},
        {"expert_tensors", expert_names(table.model).count},
    };
    if (report.plain) json["packed"] = packed_json(report, table);
    if (!report.kinds.empty()) json["kinds"] = kinds_json(report.kinds);
    if (!report.curve.points.empty()) json["curve"] = curve_json(report.curve);
    if (report.experts) json["experts"] = experts_json(*report.experts);
    Json list = Json::array();
    for (std::size_t i = 0; i < table.blocks.size(); ++i) {
        list.push_back({{"name", table.blocks[i].name},
                        {"bytes", table.blocks[i].bytes},
                        {"unordered", table.blocks[i].unordered},
                        {"resident_bytes", report.parts[i].resident_bytes},
                        {"streamed_bytes", report.parts[i].streamed_bytes}});
    }
    json["block_list"] = std::move(list);
    return to_text(json);
}

std::string table_text(const PlanReport& report, const BlockTable& table, bool all_blocks, const Terminal& terminal) {
    std::string text = blocks_text(report, table, all_blocks, terminal) + "\n";
    if (!report.kinds.empty()) text += kinds_text(report, terminal) + "\n";
    if (!report.curve.points.empty()) text += curve_text(report, terminal) + "\n";
    text += facts_text(report, table, terminal);
    if (table.unordered_blocks > 0)
        text += "\nThe bytes copied, the step time and the bound do not count loads of the unordered blocks.\n";
    if (report.experts) {
        text += fmt::format(
            "\nAbove, experts are blocks of their layers, and each step uses all. Below, a token loads those that it "
            "uses and that have no slot.\n\n{}",
            experts_text(*report.experts, terminal));
    } else if (const std::string note = experts_note(table); !note.empty()) {
        text += "\n" + note;
    }
    return text;
}

}  // namespace stagehand::cli
