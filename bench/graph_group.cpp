// Graphs: a step that is captured once and launched repeatedly, compared with the same step made call by call.
#include <chrono>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "bench/cuda_driver.h"
#include "bench/group.h"
#include "model/quantity.h"
#include "units.h"

namespace stagehand::cli::bench {

namespace {

constexpr int warm = 2;

struct Passes {
    double pass_ns = 0;              // from one pass to the next, without a wait in between
    double host_ns = 0;              // of the calling thread; the median pass
    std::uint64_t bytes_copied = 0;  // per pass
};

// `pass` queues one pass. Returns nothing if a signal came.
template <typename Pass>
std::optional<Passes> measure_passes(const Bench& bench, const BlockStream& stream, int count, Pass pass) {
    using Clock = std::chrono::steady_clock;
    std::vector<double> host_ns;
    std::uint64_t begin = 0;
    std::uint64_t copied = 0;
    for (int i = -warm; i < count; ++i) {
        if (i == 0) {
            stream.synchronize();
            begin = device_clock_ns(bench.device);
            copied = runtime_stats(stream.runtime()).bytes_to_device;
            host_ns.clear();
        }
        if (stopped()) {
            stream.synchronize();
            return std::nullopt;
        }
        const Clock::time_point before = Clock::now();
        pass();
        host_ns.push_back(static_cast<double>(std::chrono::nanoseconds(Clock::now() - before).count()));
    }
    stream.synchronize();
    Passes passes;
    passes.pass_ns = static_cast<double>(device_clock_ns(bench.device) - begin) / count;
    passes.host_ns = median(std::move(host_ns));
    passes.bytes_copied =
        (runtime_stats(stream.runtime()).bytes_to_device - copied) / static_cast<std::uint64_t>(count);
    return passes;
}

struct GraphCase {
    int percent;
    double compute_ratio;  // computing as a multiple of the time that (W - M) bytes need
};

std::string graph_name(const GraphCase& what) {
    return fmt::format("8B shapes, {} %, compute {} × copy", what.percent, what.compute_ratio);
}

// Returns nothing if a signal came.
std::optional<Row> measure(const Bench& bench, const CudaDriver& driver, const GraphCase& what) {
    const std::vector<std::uint64_t> sizes = model_sizes(bench.extent.scale());
    std::uint64_t total = 0;
    for (const std::uint64_t size : sizes) total += size;
    const std::uint64_t budget = total / 100 * static_cast<std::uint64_t>(what.percent);
    BlockStream stream(bench.device, {"graph", budget, 1, 0}, shared_blocks(*bench.shared, sizes));
    stream.set_compute(
        static_cast<std::uint64_t>(bench.copy_ns(static_cast<double>(total - budget)) * what.compute_ratio));
    const std::optional<std::uint64_t> alone = stream.compute_alone();
    if (!alone) return std::nullopt;
    stream.tell_order(*alone);
    const sh_plan_info plan = stream.plan();
    const int count = bench.steps();
    const std::optional<Passes> by_calls = measure_passes(bench, stream, count, [&] { stream.queue_step(); });
    if (!by_calls) return std::nullopt;
    const CudaDriver::Step step(driver, stream.runtime(), stream.handle(), [&] { stream.queue_uses(); });
    const std::optional<Passes> captured = measure_passes(bench, stream, count, [&] { step.launch(); });
    if (!captured) return std::nullopt;
    Row row = {graph_name(what),
               Unit::seconds,
               captured->pass_ns / 1e9,
               by_calls->pass_ns / 1e9,
               "the step by calls",
               fmt::format("the host takes {}, by calls {}", model::format_duration(captured->host_ns),
                           model::format_duration(by_calls->host_ns))};
    row.more = {{"blocks", sizes.size()},
                {"model_bytes", total},
                {"budget_bytes", plan.budget_bytes},
                {"compute_to_copy", what.compute_ratio},
                {"host_seconds", captured->host_ns / 1e9},
                {"host_seconds_by_calls", by_calls->host_ns / 1e9},
                {"copied_bytes", captured->bytes_copied},
                {"copied_bytes_by_calls", by_calls->bytes_copied},
                {"steps", count}};
    return row;
}

}  // namespace

void measure_graph(Bench& bench, GroupReport& report) {
    std::string reason;
    const std::unique_ptr<CudaDriver> driver = CudaDriver::open(device_capabilities(bench.device).name, &reason);
    if (!driver) {
        report.about = "a captured step against the step by calls";
        report.notes.push_back(fmt::format("left out: this measurement needs CUDA's driver, but {}", reason));
        return;
    }
    report.about = fmt::format("mean of {} steps, one right after the other; 8B shapes at {} of their size",
                               bench.steps(), share_text(bench.extent.scale(), 1));
    if (!bench.shared->pinned()) {
        report.notes.push_back("left out: a graph reads from pinned memory only");
        report.notes.push_back(unpinned_note(bench.shared->bytes()));
        return;
    }
    std::vector<GraphCase> list;
    for (const int percent : {25, 50, 90})
        for (const double ratio : {0.25, 1.0, 4.0}) list.push_back({percent, ratio});
    measure_cases(bench, report, list, graph_name,
                  [&](const GraphCase& what) { return measure(bench, *driver, what); });
}

}  // namespace stagehand::cli::bench
