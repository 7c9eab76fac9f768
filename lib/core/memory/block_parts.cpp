#include "core/memory/block_parts.h"

#include <algorithm>

namespace stagehand::core {
namespace {

// The bytes of the segment that lie in the part. None: nothing of the segment does.
sh_segment within(const sh_segment& segment, const policy::Cut& part) {
    const uint64_t begin = std::max(segment.offset, part.offset);
    const uint64_t end = std::min(segment.offset + segment.bytes, part.offset + part.bytes);
    sh_segment piece = segment;
    piece.bytes = begin < end ? end - begin : 0;
    if (!piece.bytes) return piece;
    const uint64_t skipped = begin - segment.offset;
    piece.offset = begin - part.offset;
    if (segment.packed_bytes)
        piece.packed_offset += skipped;
    else if (segment.kind == SH_SOURCE_FILE || segment.kind == SH_SOURCE_FILL)
        piece.file_offset += skipped;
    else
        piece.pointer = static_cast<const char*>(segment.pointer) + skipped;
    return piece;
}

}  // namespace

BlockParts::BlockParts(const sh_block_desc& block, std::span<const policy::Cut> cuts)
    : descs_(cuts.size(), block), segments_(cuts.size()), names_(cuts.size()) {
    for (size_t i = 0; i < cuts.size(); i++) {
        sh_block_desc& part = descs_[i];
        part.bytes = cuts[i].bytes;
        for (uint64_t k = 0; k < block.segment_count; k++)
            if (const sh_segment piece = within(block.segments[k], cuts[i]); piece.bytes) segments_[i].push_back(piece);
        part.segments = segments_[i].data();
        part.segment_count = segments_[i].size();
        if (!block.name) continue;
        names_[i] = std::string(block.name) + "[" + std::to_string(i + 1) + "/" + std::to_string(cuts.size()) + "]";
        part.name = names_[i].c_str();
    }
}

}  // namespace stagehand::core
