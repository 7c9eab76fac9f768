// Streaming: steps over the shapes of models at several budgets and compute times, compared with the limit
// max(computing, planned bytes / link) and with the time that the plan expects.
#include <algorithm>
#include <random>

#include <fmt/format.h>

#include "bench/group.h"
#include "model/quantity.h"
#include "units.h"

namespace stagehand::cli::bench {

namespace {

struct Shape {
    std::string name;
    std::vector<std::uint64_t> sizes;

    std::uint64_t bytes() const {
        std::uint64_t total = 0;
        for (const std::uint64_t size : sizes) total += size;
        return total;
    }
};

struct Shapes {
    Shape equal{"24 equal blocks", {}};
    Shape model{"8B shapes", {}};
    Shape unequal{"400 blocks", {}};
};

Shapes shapes(double scale) {
    Shapes all;
    all.equal.sizes.assign(24, scaled_bytes(256 * mib, scale));
    all.model.sizes = model_sizes(scale);
    std::mt19937 random(7);
    for (int i = 0; i < 400; ++i) all.unequal.sizes.push_back(scaled_bytes((1 + random() % 60) * mib, scale));
    return all;
}

// A shape, a budget, and the compute time as a multiple of the time to copy W - M bytes.
struct Case {
    const Shape& shape;
    std::uint64_t budget_bytes;
    std::string budget;  // for the row's name
    double compute_ratio;
};

std::vector<Case> cases(const Shapes& all) {
    std::vector<Case> list;
    const std::uint64_t three = 3 * all.equal.sizes[0];
    for (const double ratio : {0.0, 2.0}) list.push_back({all.equal, three, "3 blocks", ratio});
    const auto shares = [&](const Shape& shape, std::initializer_list<int> percents,
                            std::initializer_list<double> ratios) {
        for (const int percent : percents)
            for (const double ratio : ratios)
                list.push_back({shape, shape.bytes() / 100 * static_cast<std::uint64_t>(percent),
                                fmt::format("{} %", percent), ratio});
    };
    shares(all.equal, {25, 50, 75}, {0.25, 4});
    // Room for the largest block and a little more: 1,024 MiB at the real size.
    list.push_back({all.model, all.model.sizes[0] / 1002 * 1024, "largest block", 0});
    shares(all.model, {25, 50, 75, 90}, {0.25, 1, 4});
    shares(all.unequal, {25, 50, 75}, {0.25, 4});
    return list;
}

std::string name_of(const Case& what) {
    const std::string compute =
        what.compute_ratio > 0 ? fmt::format("compute {} × copy", what.compute_ratio) : "no computing";
    return fmt::format("{}, {}, {}", what.shape.name, what.budget, compute);
}

// The least time of a step, in nanoseconds.
struct Limit {
    double ns;
    const char* name;
};

Limit limit_of(const Bench& bench, const sh_plan_info& plan, double compute_ns) {
    const double copy_ns = bench.copy_ns(static_cast<double>(plan.bytes_per_step));
    return compute_ns > copy_ns ? Limit{compute_ns, "computing alone"} : Limit{copy_ns, "planned bytes / link"};
}

Row row_of(const Bench& bench, const Case& what, const sh_plan_info& plan, const StepTimes& times, double compute_ns,
           std::uint64_t largest_block) {
    const Limit limit = limit_of(bench, plan, compute_ns);
    const double excess = static_cast<double>(what.shape.bytes() - std::min(what.shape.bytes(), plan.budget_bytes));
    const double bound_ns = std::max(compute_ns, bench.copy_ns(excess));
    const double plan_ns = static_cast<double>(plan.step_ns);
    Row row = {name_of(what),
               Unit::seconds,
               times.step_ns / 1e9,
               limit.ns / 1e9,
               limit.name,
               fmt::format("{} the plan, {} the bound", ratio_text(times.step_ns, plan_ns),
                           ratio_text(times.step_ns, bound_ns))};
    row.firm = true;
    const auto steps = static_cast<std::uint64_t>(times.all_ns.size());
    row.more = {{"shape", what.shape.name},
                {"blocks", what.shape.sizes.size()},
                {"model_bytes", what.shape.bytes()},
                {"budget_bytes", plan.budget_bytes},
                {"compute_to_copy", what.compute_ratio},
                {"compute_seconds", compute_ns / 1e9},
                {"largest_block_seconds", bench.copy_ns(static_cast<double>(largest_block)) / 1e9},
                {"planned_seconds", plan_ns / 1e9},
                {"ratio_to_plan", plan_ns > 0 ? times.step_ns / plan_ns : 0},
                {"bound_seconds", bound_ns / 1e9},
                {"ratio_to_bound", bound_ns > 0 ? times.step_ns / bound_ns : 0},
                {"planned_bytes", plan.bytes_per_step},
                {"copied_bytes", times.bytes_copied / steps},
                {"bound_bytes", plan.bound_bytes_per_step},
                {"host_waits", times.host_waits},
                {"steps", steps},
                {"shortest_seconds", *std::min_element(times.all_ns.begin(), times.all_ns.end()) / 1e9},
                {"longest_seconds", *std::max_element(times.all_ns.begin(), times.all_ns.end()) / 1e9}};
    return row;
}

// Returns nothing if a signal came.
std::optional<Row> measure(const Bench& bench, const Case& what) {
    BlockStream stream(bench.device, {what.shape.name, what.budget_bytes, 1, 0},
                       shared_blocks(*bench.shared, what.shape.sizes));
    const double excess = static_cast<double>(what.shape.bytes() - std::min(what.shape.bytes(), what.budget_bytes));
    std::uint64_t compute_ns = 0;
    if (what.compute_ratio > 0) {
        stream.set_compute(static_cast<std::uint64_t>(bench.copy_ns(excess) * what.compute_ratio));
        const std::optional<std::uint64_t> alone = stream.compute_alone();
        if (!alone) return std::nullopt;
        compute_ns = *alone;
    }
    stream.tell_order(compute_ns);
    const sh_plan_info plan = stream.plan();
    const std::optional<StepTimes> times = stream.run(bench.steps());
    if (!times) return std::nullopt;
    return row_of(bench, what, plan, *times, static_cast<double>(compute_ns), stream.largest_bytes());
}

}  // namespace

void measure_streaming(Bench& bench, GroupReport& report) {
    const Shapes all = shapes(bench.extent.scale());
    const std::vector<Case> list = cases(all);
    report.about = fmt::format("median of {} steps; 8B shapes at {} of their size, {}", bench.steps(),
                               share_text(bench.extent.scale(), 1), model::format_bytes(all.model.bytes()));
    measure_cases(bench, report, list, name_of, [&](const Case& what) { return measure(bench, what); });
}

}  // namespace stagehand::cli::bench
