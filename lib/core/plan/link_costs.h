// What a byte of each unit costs on the link, beside a plain byte.
#pragma once

#include <span>
#include <vector>

#include "core/memory/registry.h"

namespace stagehand::core {

struct LinkCost {
    // Link time of a byte / that of a plain byte: less than 1 if the unit is packed, more if the own link brings it
    // alone.
    double link = 1;
    double by_workers = 0;  // the part of the bytes that workers read
};

struct LinkSpeeds {
    double bytes_per_ns = 1;        // of all links, for pieces that are divided among them
    double own_bytes_per_ns = 1;    // of the device's own link, for smaller pieces
    double unpack_ns_per_byte = 0;  // of the device, or 0 if the host unpacks
    uint64_t batch_bytes = 0;       // of packed chunks that come at once
};

// For each unit. `kept_part`: for each unit, the part of its packed chunks that stay on the device, which the link does
// not bring. If empty, none stay. Costs are rounded, so that units whose tensors are of one kind cost the same.
void find_link_costs(Registry& registry, const LinkSpeeds& speeds, std::span<const double> kept_part,
                     std::vector<LinkCost>* out);

}  // namespace stagehand::core
