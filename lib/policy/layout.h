// The places of the parts in the ring. Any offsets are correct as long as units that are held together do not overlap.
// With good offsets, the copies go round the ring in the order in which its pages become free.
#pragma once

#include <cstdint>
#include <span>

#include "policy/plan.h"
#include "policy/shape.h"

namespace stagehand::policy {

enum class Layout : uint8_t {
    packed,  // by first use, each part after the end of the one before
    // As packed, but pages are left out evenly so that the last part ends where the first begins. If parts must be
    // contiguous: as packed, but pushed back over the part before at the ring's end.
    spread,
    rotating,   // as packed, but after the parts of units that are held along with this one
    two_ended,  // at the bottom, else at the top, else in the lowest hole between units that are held along with it
};

// Sets the offsets of the parts. `units` gives their sizes, none of which exceeds the ring. Returns false if this
// layout finds no place for a part. It does not check that packed and spread parts of units held together stay apart.
// ProgrammeTracer checks that.
bool lay_out(const Shape& shape, Layout layout, uint32_t ring_pages, std::span<UnitPlan> units);

// The smallest ring into which all units fit with nothing resident, and a layout for it. The ring is found by trying.
// It is the widest window if that can be laid out, which is always so if one use is held at a time.
struct TightRing {
    uint32_t pages = 0;
    Layout layout = Layout::packed;
};
TightRing tightest_ring(const Shape& shape);

}  // namespace stagehand::policy
