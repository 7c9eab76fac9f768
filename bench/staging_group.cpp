// The staging buffers: sources that are not pinned memory, or not in one piece, compared with pinned memory.
#include <algorithm>
#include <cstring>
#include <random>

#include <fmt/format.h>

#include "bench/group.h"
#include "bench/memory.h"
#include "model/quantity.h"
#include "units.h"

namespace stagehand::cli::bench {

namespace {

constexpr std::uint64_t blocks = 64;
constexpr std::uint32_t in_flight = 4;  // blocks that have device memory at once
constexpr std::uint64_t kib = 1024;
constexpr std::uint64_t smallest_segment = kib;
constexpr std::uint64_t largest_segment = 64 * kib;
// A gap between neighbours, so that they do not form one segment.
constexpr std::uint64_t gap = 64;

// Streams everything in each step, in whole blocks, so that the results differ only by the source.
std::optional<double> speed_of(const Bench& bench, const char* name, const std::vector<BlockSource>& sources) {
    StreamOptions options;
    options.name = name;
    for (const BlockSource& source : sources) options.max_bytes = std::max(options.max_bytes, source.bytes);
    const std::uint64_t page = device_memory(bench.device).page_bytes;
    // Blocks that do not fill their last page need not begin at the start of a page.
    options.max_bytes = in_flight * ((options.max_bytes + page - 1) / page + 1) * page;
    options.max_held = in_flight;
    options.block_flags = SH_BLOCK_WHOLE;
    BlockStream stream(bench.device, options, sources);
    stream.tell_order(0);
    const sh_plan_info plan = stream.plan();
    const std::optional<StepTimes> times = stream.run(bench.steps());
    if (!times) return std::nullopt;
    return static_cast<double>(plan.bytes_per_step) * 1e9 / std::max(times->step_ns, 1.0);
}

std::vector<BlockSource> equal_blocks(std::uint64_t total, sh_segment segment) {
    const std::uint64_t bytes = total / blocks / 4096 * 4096;
    std::vector<BlockSource> sources;
    for (std::uint64_t i = 0; i < blocks; ++i) {
        sh_segment part = segment;
        part.bytes = bytes;
        if (segment.kind == SH_SOURCE_FILE)
            part.file_offset = i * bytes;
        else
            part.pointer = static_cast<const char*>(segment.pointer) + i * bytes;
        sources.push_back({bytes, {part}});
    }
    return sources;
}

// Segments of many sizes, each from its own place in `memory`, one after the other in `blocks` blocks. They are the
// same in each run.
std::vector<BlockSource> small_segments(std::uint64_t total, char* memory, std::uint64_t memory_bytes) {
    constexpr std::uint64_t mean = (smallest_segment + largest_segment) / 2;
    const std::uint64_t count = std::max(total / mean / blocks, std::uint64_t{1}) * blocks;
    std::mt19937 random(5);
    std::vector<BlockSource> sources(blocks);
    std::uint64_t at = 0;
    for (std::uint64_t i = 0; i < count; ++i) {
        sh_segment segment = SH_SEGMENT_INIT;
        segment.kind = SH_SOURCE_POINTER;
        segment.bytes = smallest_segment + random() % (largest_segment - smallest_segment + 1);
        if (at + segment.bytes > memory_bytes) at = 0;
        segment.pointer = memory + at;
        at += segment.bytes + gap;
        BlockSource& block = sources[i * blocks / count];
        segment.offset = block.bytes;
        block.bytes += segment.bytes;
        block.segments.push_back(segment);
    }
    return sources;
}

sh_segment in_memory(char* memory) {
    sh_segment segment = SH_SEGMENT_INIT;
    segment.kind = SH_SOURCE_POINTER;
    segment.pointer = memory;
    return segment;
}

// Measures row after row. The other rows are compared with the first.
class StagingRows {
public:
    StagingRows(Bench& bench, GroupReport& report) : bench_(bench), report_(report) {}

    // Returns false if a signal came.
    bool add(const std::string& name, const std::vector<BlockSource>& sources) {
        if (stopped()) return false;
        const std::optional<double> speed = speed_of(bench_, "staging", sources);
        if (!speed) return false;
        const bool first = report_.rows.empty();
        if (first) pinned_ = *speed;
        Row row = {name, Unit::bytes_per_second, *speed, first ? bench_.link.limit() : pinned_,
                   first ? "link" : "pinned memory"};
        row.firm = first;
        std::uint64_t bytes = 0;
        std::uint64_t segments = 0;
        for (const BlockSource& source : sources) {
            bytes += source.bytes;
            segments += source.segments.size();
        }
        row.more = {{"bytes", bytes}, {"segments", segments}};
        bench_.progress.step(report_.rows.size(), name);
        report_.rows.push_back(std::move(row));
        return true;
    }

private:
    Bench& bench_;
    GroupReport& report_;
    double pinned_ = 0;
};

bool measure_pageable(const Bench& bench, StagingRows& rows) {
    const PlainMemory pageable(bench.extent.sources);
    std::memset(pageable.data(), 0x5a, pageable.bytes());
    if (!rows.add("pageable memory", equal_blocks(pageable.bytes(), in_memory(pageable.data())))) return false;
    const std::vector<BlockSource> small = small_segments(bench.extent.segments, pageable.data(), pageable.bytes());
    return rows.add(fmt::format("{} small segments of pageable memory", count_text(small[0].segments.size() * blocks)),
                    small);
}

bool measure_pinned(const Bench& bench, StagingRows& rows, GroupReport& report) {
    const HostMemory pinned(bench.device, bench.extent.sources);
    if (!pinned.pinned()) report.notes.push_back(unpinned_note(pinned.bytes()));
    char* const memory = static_cast<char*>(pinned.data());
    std::memset(memory, 0x5a, pinned.bytes());
    if (!rows.add("pinned memory", equal_blocks(pinned.bytes(), in_memory(memory)))) return false;
    const std::vector<BlockSource> small = small_segments(bench.extent.segments, memory, pinned.bytes());
    return rows.add(fmt::format("{} small segments of pinned memory", count_text(small[0].segments.size() * blocks)),
                    small);
}

bool measure_files(const Bench& bench, StagingRows& rows) {
    const ScratchFile file(bench.options.scratch, bench.extent.sources);
    if (stopped()) return false;
    sh_segment segment = SH_SEGMENT_INIT;
    segment.kind = SH_SOURCE_FILE;
    segment.file = file.descriptor();
    if (!rows.add("file, in the page cache", equal_blocks(file.bytes(), segment))) return false;
    const PlainMemory mapped(file.descriptor(), file.bytes());
    segment = in_memory(mapped.data());
    segment.kind = SH_SOURCE_MAPPED;
    return rows.add("mapped file, in the page cache", equal_blocks(mapped.bytes(), segment));
}

}  // namespace

void measure_staging(Bench& bench, GroupReport& report) {
    report.about = fmt::format("{} in {} blocks, of which {} have device memory; segments of 1 to 64 KiB: {}",
                               model::format_bytes(bench.extent.sources), blocks, in_flight,
                               model::format_bytes(bench.extent.segments));
    bench.progress.begin(report.name, 6, 1);
    StagingRows rows(bench, report);
    if (measure_pinned(bench, rows, report) && measure_pageable(bench, rows)) measure_files(bench, rows);
}

}  // namespace stagehand::cli::bench
