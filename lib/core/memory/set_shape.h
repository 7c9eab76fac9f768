// SetShape: the sizes of a set, from what the engine asks for.
#pragma once

#include <cstdint>
#include <span>

#include <stagehand/members.h>

#include "base/status.h"

namespace stagehand::core {

struct SetShape {
    uint64_t stride = 0;  // from slot to slot
    uint64_t bytes = 0;   // of all slots
    uint32_t group_members = 0;
    uint32_t call_pages = 0;  // for the members of one call
};

Status shape_set(const sh_set_options& options, std::span<const sh_block_desc> members, uint64_t page_bytes,
                 SetShape* out);

}  // namespace stagehand::core
