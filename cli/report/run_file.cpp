#include "report/run_file.h"

#include <algorithm>

#include <fmt/format.h>

#include "exit_code.h"
#include "json_lines.h"
#include "model/text.h"
#include "report/json_fields.h"

namespace stagehand::cli {

namespace {

// The version of the plan's description that this command reads.
constexpr std::uint64_t known_version = 1;

LoggedStep step_of(const JsonFields& line) {
    LoggedStep step;
    step.step = line.required_count("step");
    step.ms = line.required_number("step_ms");
    step.stall_ms = line.number("stall_time_ms");
    step.cancelled_loads = line.count("cancelled_loads");
    step.failed_loads = line.count("failed_loads");
    step.evictions = line.count("evictions");
    step.held_bytes = line.count("held_bytes");
    return step;
}

void add_counts(const JsonFields& fields, const char* name, std::vector<std::uint64_t>& to) {
    const Json& counts = fields.list(name);
    to.resize(std::max(to.size(), counts.size()));
    for (std::size_t i = 0; i < counts.size(); ++i) {
        if (!counts[i].is_number_unsigned()) fields.refuse(name, "holds what is not a count");
        to[i] += counts[i].get<std::uint64_t>();
    }
}

// Sets are told apart by their place and their name.
void add_sets(const JsonFields& line, RunFile& run) {
    const Json& sets = line.list("sets");
    for (std::size_t i = 0; i < sets.size(); ++i) {
        const JsonFields fields(sets[i], line.where() + ", sets");
        if (i == run.sets.size() || run.sets[i].name != fields.text("name"))
            run.sets.insert(run.sets.begin() + static_cast<std::ptrdiff_t>(i), LoggedSet());
        LoggedSet& set = run.sets[i];
        set.name = fields.text("name");
        set.members = fields.count("members");
        set.slots = fields.count("slots");
        set.uses += fields.count("uses");
        set.hits += fields.count("hits");
        set.evictions += fields.count("evictions");
        add_counts(fields, "group_uses", set.group_uses);
        add_counts(fields, "group_hits", set.group_hits);
        if (set.group_uses.size() != set.group_hits.size()) fields.refuse("group_hits", "has another length");
    }
}

void read_lists(const JsonFields& fields, LoggedPlan& plan) {
    for (const Json& item : fields.list("blocks")) {
        const JsonFields block(item, fields.where());
        LoggedBlock& to = plan.blocks.emplace_back();
        to.name = block.text("name");
        to.bytes = block.required_count("bytes");
        to.resident_bytes = std::min(block.count("resident_bytes"), to.bytes);
        to.packed = std::max<std::uint64_t>(block.count("packed"), 1);
        to.unordered = block.flag("unordered");
        if (to.bytes == 0) block.refuse("bytes", "is 0");
    }
    for (const Json& item : fields.list("uses")) {
        const JsonFields use(item, fields.where());
        const std::uint64_t block = use.required_count("block");
        if (block >= plan.blocks.size())
            use.refuse("block", fmt::format("is {}, but the plan has {} blocks", block, plan.blocks.size()));
        const double ns = use.number("compute_ms") * 1e6;
        plan.uses.push_back({static_cast<std::size_t>(block), static_cast<std::uint64_t>(std::min(ns, 1e18))});
    }
}

LoggedPlan plan_of(const JsonFields& fields) {
    const std::uint64_t version = fields.required_count("version");
    if (version > known_version) {
        throw CommandError(
            ExitCode::model,
            fmt::format("{}: its plan has version {}, but this command reads versions up to {}; take a newer stagehand",
                        fields.where(), version, known_version));
    }
    LoggedPlan plan;
    plan.device = fields.text("device");
    plan.granularity_bytes = fields.count("granularity_bytes");
    plan.page_bytes = fields.count("page_bytes");
    plan.budget_bytes = fields.count("budget_bytes");
    plan.share_bytes = fields.count("share_bytes");
    plan.link_bytes_per_second = fields.count("link_bytes_per_second");
    plan.model_bytes = fields.count("model_bytes");
    plan.resident_bytes = fields.count("resident_bytes");
    plan.ring_bytes = fields.count("ring_bytes");
    plan.unordered_bytes = fields.count("unordered_bytes");
    plan.bytes_per_step = fields.count("bytes_per_step");
    plan.smallest_budget_bytes = fields.count("smallest_budget_bytes");
    plan.smallest_budget_block = fields.text("smallest_budget_block");
    plan.orders = fields.count("orders");
    plan.step_ms = fields.number("step_ms");
    plan.bound_ms = fields.number("bound_ms");
    plan.compute_ms = fields.number("compute_ms");
    read_lists(fields, plan);
    return plan;
}

void add_line(const Json& json, const std::string& where, RunFile& run) {
    const JsonFields line(json, where);
    if (json.is_object() && !json.contains("step_ms") && json.contains("activations_saved")) {
        throw CommandError(ExitCode::model,
                           fmt::format("{} is of a spiller; a report is made of the telemetry of a runtime", where));
    }
    run.steps.push_back(step_of(line));
    run.runtime = line.text("runtime");
    add_sets(line, run);
    // A runtime that has given all its memory back has an empty plan.
    if (const Json* plan = line.find("plan"); plan != nullptr && !plan->empty()) {
        run.plan = plan_of(JsonFields(*plan, where + ", plan"));
        ++run.plans;
    }
}

}  // namespace

RunFile read_run_file(const std::string& path) {
    RunFile run;
    run.path = path;
    run.label = model_name(path);
    run.cut = read_json_lines(path, [&](const Json& json, const std::string& where) { add_line(json, where, run); });
    if (run.steps.empty()) throw CommandError(ExitCode::model, model::printable(path) + " holds no step");
    return run;
}

std::vector<double> later_steps(const RunFile& run, double LoggedStep::*member) {
    std::vector<double> values;
    for (std::size_t i = run.steps.size() > 1 ? 1 : 0; i < run.steps.size(); ++i)
        values.push_back(run.steps[i].*member);
    return values;
}

}  // namespace stagehand::cli
