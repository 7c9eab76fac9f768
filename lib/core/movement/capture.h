// Capture: what acquires and releases record while the engine captures a step into a graph of its driver.
#pragma once

#include <cstdint>
#include <memory>
#include <unordered_map>
#include <vector>

#include "backend/backend_device.h"
#include "base/status.h"
#include "core/movement/direct_copies.h"
#include "core/movement/graph.h"
#include "core/movement/load.h"
#include "core/memory/registry.h"
#include "core/memory/ring.h"

namespace stagehand::core {

// A graph runs again and again, so it takes nothing for granted of the ring: the first use of each streamed part loads it, into pages
// that follow the plan; what comes later in the graph finds there what the graph itself has loaded. Its copies stand on a stream of
// their own, in the order of first use, and wait for the uses of their pages that the graph itself has recorded and for nothing else:
// an event from outside would make the driver refuse the capture. Called with the runtime's mutex held.
class Capture {
public:
    Capture(BackendDevice& device, Registry& registry, const Ring& ring);

    // The copy stream joins the capture that is under way on `stream`.
    Status begin(sh_stream stream);
    sh_stream stream() const { return stream_; }

    // A unit that somebody holds and whose pages this one needs; null: none.
    Unit* holder(const Unit& unit);
    // Records the copies of what is not there, and that `stream` waits for them.
    Status acquire(Unit& unit, sh_stream stream);
    // Records that later copies wait for what `stream` did.
    Status release(Unit& unit, sh_stream stream);

    // Joins the copy stream back. The capture is over, whatever comes out of it.
    Status end();
    // What has been recorded, and the objects with it.
    std::unique_ptr<Graph> finish();

private:
    struct Use {                          // of one unit, inside the capture
        sh_backend_event loaded = 0;      // after its last load
        std::vector<UnitUse> ends;        // its last release on each stream
        uint64_t last = 0;                // counted in releases
    };

    Ring::Page& page_of(const Unit& unit, uint32_t k) { return pages_[ring_.wrap(uint64_t(unit.ring_offset) + k)]; }
    void find_missing(const Unit& unit);
    void find_fences(const Unit& unit);
    Status load(Unit& unit, Use& use);

    BackendDevice& device_;
    Registry& registry_;
    const Ring& ring_;
    sh_stream stream_ = SH_STREAM_HOST;
    CaptureObjects objects_;
    std::vector<Ring::Page> pages_;       // the ring's, as the graph will have filled them
    std::unordered_map<uint32_t, Use> uses_;
    uint64_t releases_ = 0;
    uint64_t loads_ = 0, pieces_ = 0, bytes_ = 0;
    DirectCopies copies_;
    Load load_;                           // the one that is being recorded
};

}  // namespace stagehand::core
