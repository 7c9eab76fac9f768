// The terms of a plan: what it has to keep to, and what it comes to.
#pragma once

#include <cstdint>
#include <vector>

#include "core/memory/placement.h"
#include "core/plan/link_costs.h"

namespace stagehand::core {

struct PlanLimits {
    uint32_t max_held = 1;
    uint64_t unordered_pages = 0;       // as the engine asked for; 0: automatic
    uint64_t unordered_held_pages = 0;  // the most pages that were held at once so far
    double link_bytes_per_ns = 1;       // of the device's link and those beside it
    double link_bytes_beside = 0;       // of the latter, per nanosecond; they carry large pieces only
    uint64_t copy_latency_ns = 0;
    uint64_t unordered_now = 0;       // pages that blocks outside the order have now
    double unpack_ns_per_byte = 0;    // that the device takes for a byte of a packed block; 0: the host unpacks
    uint64_t unpack_batch_bytes = 0;  // of packed chunks that come at once
    std::vector<double> kept_part;    // see find_link_costs()
    std::vector<bool> changing;       // for each unit, or for none: the engine changes it in each step
    bool keep_all = false;            // resident pages stay resident, whatever else the plan has to do

    LinkSpeeds speeds() const {
        const double beside = link_bytes_per_ns > link_bytes_beside ? link_bytes_beside : 0;
        return {link_bytes_per_ns, link_bytes_per_ns - beside, unpack_ns_per_byte, unpack_batch_bytes};
    }
};

struct PlanResult {
    std::vector<Place> places;  // for each unit
    uint64_t share_pages = 0;   // the share that the plan was made for
    uint64_t resident_pages = 0;
    uint32_t ring_pages = 0;
    uint64_t unordered_pages = 0;
    UnpackPlan unpack;
    std::vector<double> kept_part;  // for each unit, the part of its packed chunks that stay
    uint64_t least_pages = 0;       // the smallest share with which a plan exists
    uint32_t least_unit = kNone;    // the unit that determines least_pages
    uint64_t bytes_per_step = 0;
    uint64_t bound_bytes_per_step = 0;
    double step_ns = 0;
    double bound_ns = 0;
    double plan_bound_ns = 0;
    uint64_t compute_ns = 0;
    uint64_t link_bytes_per_second = 0;
    uint64_t unpack_bytes_per_second = 0;  // 0: the host unpacks
    uint64_t resident_blocks = 0, streamed_blocks = 0;
    uint64_t orders = 0;  // that the plan is for; the times and the copied bytes are means over a step of each

    uint64_t pages() const { return resident_pages + ring_pages + unordered_pages + unpack.all_pages(); }
};

}  // namespace stagehand::core
