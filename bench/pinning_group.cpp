// Pinned memory: the library's allocation, compared with memory that one thread touches and the library then pins, and,
// on CUDA, with the allocation of the driver.
#include <cstring>

#include <fmt/format.h>

#include "bench/cuda_driver.h"
#include "bench/group.h"
#include "bench/memory.h"
#include "model/quantity.h"

namespace stagehand::cli::bench {

namespace {

constexpr std::uint64_t enough_ns = 1'000'000'000;
constexpr std::size_t most_rounds = 3;

// One round, in nanoseconds.
struct PinningRound {
    double touch = 0;
    double pin = 0;
    double library = 0;
    double driver = 0;  // 0: not measured
    bool pinned = false;
};

std::uint64_t pin_ns(sh_device* device, const PlainMemory& memory) {
    const Runtime runtime = create_runtime(device, "pinning");
    sh_block block = 0;
    const std::uint64_t ns = elapsed_ns(device, [&] {
        block = register_block(runtime.get(), memory.data(), memory.bytes(), SH_BLOCK_PIN, "SH_BLOCK_PIN");
    });
    check(sh_unregister_blocks(runtime.get(), &block, 1), "unpinning");
    return ns;
}

PinningRound measure_round(const Bench& bench, const CudaDriver* driver) {
    PinningRound round;
    {
        const PlainMemory memory(bench.extent.pin);
        round.touch =
            static_cast<double>(elapsed_ns(bench.device, [&] { std::memset(memory.data(), 0x5a, memory.bytes()); }));
        round.pin = static_cast<double>(pin_ns(bench.device, memory));
    }
    std::optional<HostMemory> memory;
    round.library =
        static_cast<double>(elapsed_ns(bench.device, [&] { memory.emplace(bench.device, bench.extent.pin); }));
    round.pinned = memory->pinned();
    if (driver != nullptr) {
        memory.reset();
        std::optional<CudaDriver::Pinned> of_driver;
        round.driver =
            static_cast<double>(elapsed_ns(bench.device, [&] { of_driver.emplace(*driver, bench.extent.pin); }));
    }
    return round;
}

double median_of(const std::vector<PinningRound>& rounds, double (*figure)(const PinningRound&)) {
    std::vector<double> figures;
    for (const PinningRound& round : rounds) figures.push_back(figure(round));
    return median(std::move(figures));
}

}  // namespace

void measure_pinning(Bench& bench, GroupReport& report) {
    report.about = fmt::format("{} of host memory", model::format_bytes(bench.extent.pin));
    bench.progress.begin(report.name, most_rounds, 1);
    std::string reason;
    const std::unique_ptr<CudaDriver> driver = CudaDriver::open(device_capabilities(bench.device).name, &reason);
    std::vector<PinningRound> rounds;
    double spent = 0;
    while (!stopped() && (rounds.empty() || (rounds.size() < most_rounds && spent < enough_ns))) {
        rounds.push_back(measure_round(bench, driver.get()));
        const PinningRound& last = rounds.back();
        spent += last.touch + last.pin + last.library + last.driver;
        bench.progress.step(rounds.size() - 1, "pinned");
    }
    if (rounds.empty()) return;
    const auto rate = [&](double ns) { return static_cast<double>(bench.extent.pin) * 1e9 / std::max(ns, 1.0); };
    const double touch = median_of(rounds, [](const PinningRound& round) { return round.touch; });
    const double plain = median_of(rounds, [](const PinningRound& round) { return round.touch + round.pin; });
    const double library = median_of(rounds, [](const PinningRound& round) { return round.library; });
    const double gib = static_cast<double>(bench.extent.pin) / static_cast<double>(1U << 30);
    const bool pinned = rounds.back().pinned;
    const auto add = [&](const char* name, double ns, double limit_ns, const char* limit_name) {
        Row row = {name,       Unit::bytes_per_second,
                   rate(ns),   rate(limit_ns),
                   limit_name, fmt::format("{} a GiB", model::format_duration(ns / gib))};
        row.more = {{"bytes", bench.extent.pin}, {"seconds_per_gib", ns / 1e9 / gib}, {"pinned", pinned}};
        report.rows.push_back(std::move(row));
    };
    add("touched by one thread, then SH_BLOCK_PIN", plain, touch, "touching alone");
    add("sh_host_alloc", library, plain, "touched, then pinned");
    if (driver) {
        add("cuMemHostAlloc", median_of(rounds, [](const PinningRound& round) { return round.driver; }), library,
            "sh_host_alloc");
    }
    if (!pinned) report.notes.push_back(unpinned_note(bench.extent.pin));
}

}  // namespace stagehand::cli::bench
