// The groups of measurements, and the state that they share.
#pragma once

#include <cstdint>
#include <optional>

#include <stagehand/stagehand.h>

#include "bench/block_stream.h"
#include "bench/extent.h"
#include "bench/report.h"
#include "copy_speed.h"
#include "library.h"
#include "options.h"
#include "progress.h"

namespace stagehand::cli::bench {

// Whether Ctrl-C has come.
bool stopped();

// Pinned memory that blocks are copied from. Several blocks may read the same bytes, so that a model needs no more
// pinned memory than its largest block.
class SharedSource {
public:
    // Takes no memory on a simulation, which reads nothing.
    SharedSource(sh_device* device, std::uint64_t bytes, bool simulation);

    // A source of `bytes` bytes, at most the size of the memory. It begins after the source before, or again at the
    // front.
    sh_segment segment(std::uint64_t bytes);
    bool pinned() const { return !memory_ || memory_->pinned(); }
    std::uint64_t bytes() const { return bytes_; }

private:
    std::optional<HostMemory> memory_;
    std::uint64_t bytes_;
    std::uint64_t at_ = 0;
};

// A budget of the device for the lifetime of the object: restores the one before in its destructor.
class BudgetChange {
public:
    explicit BudgetChange(sh_device* device) : device_(device), before_(device_memory(device).budget_bytes) {}
    ~BudgetChange() { (void)!sh_device_set_budget(device_, before_); }  // a destructor cannot report it
    BudgetChange(const BudgetChange&) = delete;
    BudgetChange& operator=(const BudgetChange&) = delete;

    void set(std::uint64_t bytes) const { check(sh_device_set_budget(device_, bytes), "changing the budget"); }

private:
    sh_device* device_;
    std::uint64_t before_;
};

// The speeds of the device's copies in bytes per second, measured at the beginning.
struct Link {
    double raw = 0;        // copies of the driver, as the library measures them for itself
    double to_device = 0;  // blocks streamed from pinned memory
    double to_host = 0;
    std::optional<BothWays> both_ways;
    std::uint64_t bytes = 0;  // the bytes that were copied
    bool pinned = false;      // whether the system allowed the memory to be pinned

    // The speed from which the limits of the other groups are computed.
    double limit() const { return raw > to_device ? raw : to_device; }
};

// The state of one run of `bench`. Groups add their rows one by one, and return early if a signal has come.
struct Bench {
    const BenchOptions& options;
    sh_device* device = nullptr;
    bool simulation = false;
    Extent extent;
    Link link;
    SharedSource* shared = nullptr;
    Progress& progress;

    int steps() const { return options.quick ? 3 : 5; }
    double copy_ns(double bytes) const { return bytes / link.limit() * 1e9; }
};

// Measures case after case until a signal comes: `measure` returns the row, or nothing if one came.
template <typename Case, typename NameOf, typename Measure>
void measure_cases(Bench& bench, GroupReport& report, const std::vector<Case>& cases, NameOf name_of, Measure measure) {
    bench.progress.begin(report.name, cases.size(), 1);
    for (std::size_t i = 0; i < cases.size() && !stopped(); ++i) {
        try {
            std::optional<Row> row = measure(cases[i]);
            if (!row) return;
            bench.progress.step(i, row->name);
            report.rows.push_back(std::move(*row));
        } catch (const LibraryError& error) {
            if (error.status() != SH_ERROR_BUDGET) throw;
            // With a small scale, the share may be less than the pages of the largest block.
            report.notes.push_back(name_of(cases[i]) + ": left out, " + error.what());
        }
    }
}

void report_link(const Bench& bench, GroupReport& report);
void measure_pinning(Bench& bench, GroupReport& report);
void measure_staging(Bench& bench, GroupReport& report);
void measure_mapping(Bench& bench, GroupReport& report);
void measure_occupancy(Bench& bench, GroupReport& report);
void measure_streaming(Bench& bench, GroupReport& report);
void measure_graph(Bench& bench, GroupReport& report);

// Measures the link, on a device that plans with the speed that it measures itself.
Link measure_link(sh_device* device, bool simulation);

// Blocks of these sizes whose source is the shared memory.
std::vector<BlockSource> shared_blocks(SharedSource& shared, const std::vector<std::uint64_t>& sizes);

// The note for the case that the system has refused to pin so many bytes.
std::string unpinned_note(std::uint64_t bytes);

}  // namespace stagehand::cli::bench
