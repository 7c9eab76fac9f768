#include "core/memory/block_desc.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "base/flags.h"
#include "base/size_text.h"
#include "codec/float_format.h"

namespace stagehand::core {
namespace {

constexpr uint64_t kLargestBlock = uint64_t(1) << 46;
constexpr uint64_t kLargestRange = uint64_t(1) << 62;  // of all blocks that are registered in one call

Status bad(const sh_block_desc& desc, size_t index, const std::string& what) {
    return Status(SH_ERROR_INVALID_ARGUMENT, describe(desc, index) + ": " + what);
}

Status check_packed(const sh_block_desc& desc, size_t index, const std::string& name, const sh_segment& segment) {
    if (segment.kind != SH_SOURCE_POINTER && segment.kind != SH_SOURCE_MAPPED && segment.kind != SH_SOURCE_FILE)
        return bad(desc, index, name + " is packed, but its kind is not SH_SOURCE_POINTER, _MAPPED or _FILE");
    if (desc.flags & SH_BLOCK_MUTABLE) return bad(desc, index, name + " is packed, but the block is mutable");
    return Status();
}

// A caller may free what was packed. So a format that packs nothing is refused.
Status check_format(const sh_block_desc& desc, size_t index, const std::string& name, const sh_segment& segment) {
    if (!codec::format_of(segment.format))
        return bad(desc, index, name + " has the unknown format " + std::to_string(segment.format));
    if (!(desc.flags & SH_BLOCK_PACK)) return bad(desc, index, name + " has a format, but flags has no SH_BLOCK_PACK");
    if (segment.kind != SH_SOURCE_POINTER)
        return bad(desc, index, name + " has a format, but its kind is not SH_SOURCE_POINTER");
    return segment.packed_bytes ? bad(desc, index, name + " has a format, but is packed already") : Status();
}

Status check_segment(const sh_block_desc& desc, size_t index, uint64_t number, const sh_segment& segment) {
    const std::string name = "segment " + std::to_string(number);
    if (segment.offset > desc.bytes || segment.bytes > desc.bytes - segment.offset)
        return bad(desc, index, name + " ends beyond the block's " + exact_size_text(desc.bytes));
    if (segment.packed_bytes) SH_TRY(check_packed(desc, index, name, segment));
    if (segment.format) SH_TRY(check_format(desc, index, name, segment));
    const bool memory =
        segment.kind == SH_SOURCE_POINTER || segment.kind == SH_SOURCE_MAPPED || segment.kind == SH_SOURCE_DEVICE;
    if (memory && !segment.pointer && segment.bytes) return bad(desc, index, name + " has a NULL pointer");
    if (memory && reinterpret_cast<uint64_t>(segment.pointer) > UINT64_MAX - segment.bytes)
        return bad(desc, index, name + "'s pointer and bytes overflow");
    if (segment.kind == SH_SOURCE_FILE && (segment.file < 0 || segment.file > INT32_MAX))
        return bad(desc, index, name + " has no file descriptor");
    if (segment.kind == SH_SOURCE_FILE && segment.file_offset > uint64_t(INT64_MAX) - segment.bytes)
        return bad(desc, index, name + "'s file_offset and bytes overflow");
    if (segment.kind == SH_SOURCE_FILL && !segment.fill) return bad(desc, index, name + " has no fill callback");
    if (segment.kind < SH_SOURCE_POINTER || segment.kind > SH_SOURCE_DEVICE)
        return bad(desc, index, name + " has the unknown kind " + std::to_string(segment.kind));
    if ((desc.flags & SH_BLOCK_MUTABLE) && segment.kind != SH_SOURCE_POINTER)
        return bad(desc, index, name + " is not SH_SOURCE_POINTER, but the block is mutable");
    return Status();
}

}  // namespace

std::string describe(const sh_block_desc& desc, size_t index) {
    return "block " + std::to_string(index) + (desc.name ? " \"" + std::string(desc.name) + "\"" : "");
}

Status check_blocks(std::span<const sh_block_desc> descs, uint64_t page_bytes) {
    std::vector<std::pair<uint64_t, uint64_t>> extents;
    const uint64_t largest = std::min(kLargestBlock, page_bytes * UINT32_MAX);  // a unit counts its pages in 32 bits
    uint64_t total = 0;
    for (size_t i = 0; i < descs.size(); i++) {
        const sh_block_desc& desc = descs[i];
        if (desc.bytes == 0) return bad(desc, i, "bytes is 0");
        if (desc.bytes > largest)
            return bad(desc, i,
                       "bytes is " + exact_size_text(desc.bytes) + "; with pages of " + exact_size_text(page_bytes) +
                           " a block may have at most " + exact_size_text(largest));
        total += (desc.bytes + page_bytes - 1) / page_bytes * page_bytes;
        if (total > kLargestRange) return bad(desc, i, "bytes: the blocks of this call exceed the address range");
        if (Status status =
                check_flags("flags", desc.flags,
                            {SH_KNOWN(SH_BLOCK_MUTABLE), SH_KNOWN(SH_BLOCK_WHOLE), SH_KNOWN(SH_BLOCK_UNORDERED),
                             SH_KNOWN(SH_BLOCK_PIN), SH_KNOWN(SH_BLOCK_PACK)});
            !status.ok())
            return bad(desc, i, status.text());
        if (desc.segment_count && !desc.segments) return bad(desc, i, "segments is NULL");
        extents.clear();
        for (uint64_t k = 0; k < desc.segment_count; k++) {
            const sh_segment& segment = desc.segments[k];
            SH_TRY(check_segment(desc, i, k, segment));
            if (segment.bytes) extents.emplace_back(segment.offset, segment.bytes);
        }
        std::sort(extents.begin(), extents.end());
        for (size_t k = 1; k < extents.size(); k++)
            if (extents[k - 1].first + extents[k - 1].second > extents[k].first)
                return bad(desc, i, "segments overlap at offset " + std::to_string(extents[k].first));
    }
    return Status();
}

}  // namespace stagehand::core
