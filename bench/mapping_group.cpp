// Device memory: the time of a plan that creates and maps pages, or that changes the mapping.
#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "bench/group.h"
#include "model/quantity.h"

namespace stagehand::cli::bench {

namespace {

constexpr std::uint64_t mapped_blocks = 64;
constexpr int rounds = 3;

// One round, in nanoseconds.
struct MappingRound {
    double plan_only = 0;
    double first = 0;
    double halved = 0;
    double restored = 0;
};

MappingRound measure_round(const Bench& bench, std::uint64_t block_bytes) {
    const BudgetChange budget(bench.device);
    const std::uint64_t bytes = block_bytes * mapped_blocks;
    // Frees the pages that earlier models have left, so that the first plan has to create its own.
    budget.set(device_memory(bench.device).page_bytes);
    budget.set(bytes);
    BlockStream stream(bench.device, {"mapping", 0, 1, 0},
                       shared_blocks(*bench.shared, std::vector<std::uint64_t>(mapped_blocks, block_bytes)));
    const auto timed = [&](auto work) { return static_cast<double>(elapsed_ns(bench.device, work)); };
    MappingRound round;
    stream.tell_order(0);
    round.plan_only = timed([&] { stream.dry_plan(); });
    round.first = timed([&] { stream.plan(); });
    round.halved = timed([&] {
        budget.set(bytes / 2);
        stream.plan();
    });
    round.restored = timed([&] {
        budget.set(bytes);
        stream.plan();
    });
    return round;
}

}  // namespace

void measure_mapping(Bench& bench, GroupReport& report) {
    const std::uint64_t page = device_memory(bench.device).page_bytes;
    const std::uint64_t block_bytes = std::max(bench.extent.mapping / mapped_blocks / page, std::uint64_t{2}) * page;
    const std::uint64_t bytes = block_bytes * mapped_blocks;
    report.about = fmt::format("{} blocks, {} of device memory in pages of {}", mapped_blocks,
                               model::format_bytes(bytes), model::format_bytes(page));
    bench.progress.begin(report.name, rounds, 1);
    std::vector<MappingRound> measured;
    for (int i = 0; i < rounds && !stopped(); ++i) {
        measured.push_back(measure_round(bench, block_bytes));
        bench.progress.step(static_cast<std::uint64_t>(i), "planned and mapped");
    }
    if (measured.empty()) return;
    const auto add = [&](const char* name, double MappingRound::*member, std::uint64_t of) {
        std::vector<double> figures;
        for (const MappingRound& round : measured) figures.push_back(round.*member);
        const double ns = median(std::move(figures));
        const double per_gib = ns / (static_cast<double>(of) / static_cast<double>(1U << 30));
        Row row = {name,
                   Unit::seconds,
                   ns / 1e9,
                   bench.copy_ns(static_cast<double>(of)) / 1e9,
                   "copying as much",
                   fmt::format("{} a GiB", model::format_duration(per_gib))};
        row.more = {{"bytes", of}, {"seconds_per_gib", per_gib / 1e9}, {"page_bytes", page}};
        report.rows.push_back(std::move(row));
    };
    add("plan, not put into force", &MappingRound::plan_only, bytes);
    add("first plan: pages created and mapped", &MappingRound::first, bytes);
    add("budget halved, planned anew", &MappingRound::halved, bytes / 2);
    add("budget restored, planned anew", &MappingRound::restored, bytes / 2);
}

}  // namespace stagehand::cli::bench
