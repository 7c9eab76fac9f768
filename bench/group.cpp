#include "bench/group.h"

#include <algorithm>
#include <cstring>

#include <fmt/format.h>

#include "interrupt.h"
#include "model/quantity.h"

namespace stagehand::cli::bench {

namespace {

// The source of blocks on a simulation. The simulation does not read it, but it must not be NULL.
char no_contents = 0;

constexpr std::uint64_t alignment = 4096;

}  // namespace

SharedSource::SharedSource(sh_device* device, std::uint64_t bytes, bool simulation) : bytes_(bytes) {
    if (!simulation) {
        memory_.emplace(device, bytes);
        // Memory that was never written may be a single page of zeros.
        std::memset(memory_->data(), 0x5a, bytes);
    }
}

sh_segment SharedSource::segment(std::uint64_t bytes) {
    if (bytes > bytes_ - std::min(at_, bytes_)) at_ = 0;
    sh_segment segment = SH_SEGMENT_INIT;
    segment.kind = SH_SOURCE_POINTER;
    segment.bytes = bytes;
    segment.pointer = memory_ ? static_cast<char*>(memory_->data()) + at_ : &no_contents;
    at_ += (bytes + alignment - 1) / alignment * alignment;
    return segment;
}

std::vector<BlockSource> shared_blocks(SharedSource& shared, const std::vector<std::uint64_t>& sizes) {
    std::vector<BlockSource> blocks;
    for (const std::uint64_t bytes : sizes) blocks.push_back({bytes, {shared.segment(bytes)}});
    return blocks;
}

std::string unpinned_note(std::uint64_t bytes) {
    return fmt::format(
        "the system does not allow {} to be pinned; `stagehand devices` shows the limit on locked memory",
        model::format_bytes(bytes));
}

bool stopped() { return interrupted() != 0; }

}  // namespace stagehand::cli::bench
