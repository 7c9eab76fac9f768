// What a caller of a pause or of a resume wishes.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/occupancy/extent.h"

namespace stagehand::core {

// Tags that a caller names.
struct TagSelection {
    std::span<const char* const> names;  // none: all
    bool repeat = false;                 // names that are in the wanted state already are left out
    bool no_wait = false;
};

// How tags are paused.
struct PauseWishes {
    std::optional<WayOut> contents;    // instead of what each allocation says
    uint32_t format = 0;               // the same: SH_FORMAT_*
    bool copy_all = false;             // contents that have not changed are copied too
    std::vector<AddressRange> unused;  // by the engine: in any order
    bool pinned = true;                // host memory that is new
    std::string folder;                // of files. Empty: the usual one, and only for what has to be in files
    uint64_t host_bytes = 0;           // of host memory for contents at most. 0: no limit

    WayOut way_of(const Extent& extent) const { return contents.value_or(extent.keeping().way_out); }
    uint32_t format_of(const Extent& extent) const { return format ? format : extent.keeping().format; }
};

}  // namespace stagehand::core
