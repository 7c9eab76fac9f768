// Where the parts lie in the ring. Any offsets are correct as long as units that are held together do not
// meet; good ones make the copies go round the ring in the order in which its pages become free.
#pragma once

#include <cstdint>
#include <span>

#include "policy/plan.h"
#include "policy/shape.h"

namespace stagehand::policy {

enum class Layout : uint8_t {
    packed,     // by first use, each part where the one before ends
    spread,     // packed, with pages left out evenly so that the last part ends where the first begins; where parts
                // must lie in one piece: packed, and pushed back over the part before at the ring's end
    rotating,   // packed, but past the parts of units that are held along with this one
    two_ended,  // at the bottom, else at the top, else in the lowest hole between units held along with it
};

// Sets the offsets of the parts whose sizes `units` gives, none above the ring. False if this layout finds no
// place for one. That packed and spread parts of units held together stay apart is left to ProgrammeTracer to
// check.
bool lay_out(const Shape& shape, Layout layout, uint32_t ring_pages, std::span<UnitPlan> units);

// The smallest ring, found by trying, into which all units fit with nothing resident, and a layout that does
// it. It is the widest window where that can be laid out at all: always if one use is held at a time.
struct TightRing {
    uint32_t pages = 0;
    Layout layout = Layout::packed;
};
TightRing tightest_ring(const Shape& shape);

}  // namespace stagehand::policy
