// Descriptions of blocks, and their segments, as callers give them.
#pragma once

#include <cstdint>
#include <vector>

#include "api/structs.h"

namespace stagehand::api {

Status take_segments(const sh_segment* segments, uint64_t count, const ArrayName& names, std::vector<sh_segment>* out);
// Reads the segments of a description that was read, and lets it point to them.
Status take_segments(sh_block_desc* desc, std::vector<sh_segment>* out);

// Copies of a caller's descriptions with their segments.
struct Descs {
    Status take(const sh_block_desc* descs, uint64_t count, const char* name);

    std::vector<sh_block_desc> all;
    std::vector<std::vector<sh_segment>> segments;
};

}  // namespace stagehand::api
