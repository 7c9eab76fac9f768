// Checks that must hold for every model that a reader accepts, and for its blocks. A fuzz target aborts if a check
// fails.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <set>
#include <string_view>
#include <vector>

#include "model/error.h"
#include "model/grouping.h"
#include "model/model.h"
#include "model/text.h"

namespace stagehand::cli::model::fuzz {

inline void require(bool holds) {
    if (!holds) {
        std::abort();
    }
}

// Bytes of a file.
struct Run {
    std::uint64_t begin;
    std::uint64_t end;
};

// Requires that no two runs share a byte; returns how many bytes they have.
inline std::uint64_t distinct_bytes(std::vector<Run> runs) {
    std::sort(runs.begin(), runs.end(), [](const Run& a, const Run& b) { return a.begin < b.begin; });
    std::uint64_t bytes = 0;
    for (std::size_t i = 0; i < runs.size(); ++i) {
        require(i == 0 || runs[i].begin >= runs[i - 1].end);
        bytes += runs[i].end - runs[i].begin;
    }
    return bytes;
}

inline void check_blocks(const Model& model, std::uint64_t max_block_bytes, std::size_t max_groups) {
    GroupingOptions options;
    options.max_block_bytes = max_block_bytes;
    options.max_groups = max_groups;
    std::vector<Run> runs;
    std::uint64_t packed = 0;
    for (const Block& block : group_blocks(model, options)) {
        require(block.bytes > 0 && block.bytes <= max_block_bytes && !block.segments.empty());
        std::uint64_t end = 0;
        for (const Segment& segment : block.segments) {
            require(segment.block_offset >= end && segment.block_offset < end + tensor_alignment);
            require(segment.block_offset % tensor_alignment == 0 && segment.file == 0);
            end = segment.block_offset + segment.bytes;
            if (segment.packed_bytes != 0) {
                require(segment.packed_offset + segment.bytes <= segment.contents_bytes);
                packed += segment.bytes;
            } else {
                runs.push_back({segment.offset, segment.offset + segment.bytes});
            }
        }
        require(end == block.bytes);
    }
    require(distinct_bytes(std::move(runs)) + packed == model.total_bytes);
}

// `model` has one file, of `file_bytes` bytes.
inline void check_model(const Model& model, std::uint64_t file_bytes) {
    std::set<std::string_view> names;
    std::vector<Run> runs;
    std::uint64_t saved = 0;
    require(model.files.size() == 1 && model.files[0].data_offset <= file_bytes);
    for (const Tensor& tensor : model.tensors) {
        require(names.insert(tensor.name).second && is_utf8(tensor.name));
        require(tensor.file == 0 && tensor.offset >= model.files[0].data_offset);
        require(tensor.offset <= file_bytes && tensor.file_bytes() <= file_bytes - tensor.offset);
        // A packed tensor may be a little larger than its contents. So this difference may wrap around.
        saved += tensor.bytes - tensor.file_bytes();
        if (tensor.file_bytes() > 0) {
            runs.push_back({tensor.offset, tensor.offset + tensor.file_bytes()});
        }
    }
    require(distinct_bytes(std::move(runs)) + saved == model.total_bytes);
    check_blocks(model, std::uint64_t{1} << 62, 16384);
    check_blocks(model, split_bytes, 16384);
    check_blocks(model, 3 * split_bytes, 2);
}

}  // namespace stagehand::cli::model::fuzz
