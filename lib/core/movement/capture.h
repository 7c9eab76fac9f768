// Capture: records the acquires and releases of a step that the engine captures into a graph of its driver.
#pragma once

#include <cstdint>
#include <memory>
#include <unordered_map>
#include <vector>

#include "backend/backend_device.h"
#include "base/status.h"
#include "core/device/unpack_memory.h"
#include "core/memory/registry.h"
#include "core/memory/ring.h"
#include "core/movement/graph.h"
#include "core/movement/load.h"
#include "core/movement/load_routes.h"

namespace stagehand::core {

// A graph runs many times, so it assumes nothing about the contents of the ring. The first use of each streamed part
// loads it into pages that follow the plan. Later uses in the graph find what the graph itself has loaded. The copies
// are on a stream of their own, in the order of first use. They wait only for uses of their pages that the graph itself
// has recorded, because the driver would refuse the capture after a wait for an outside event. Packed weights arrive in
// the runtime's own memory for them, which a launch has for itself. The caller holds the runtime's mutex.
class Capture {
public:
    Capture(BackendDevice& device, transfer::Lanes& lanes, Registry& registry, const Ring& ring, UnpackMemory& unpack);

    // Makes the copy stream join the capture that is under way on `stream`.
    Status begin(sh_stream stream);
    sh_stream stream() const { return stream_; }

    // A held unit whose pages this unit needs. Null if there is none.
    Unit* holder(const Unit& unit);
    // Records the copies of the missing bytes, and makes `stream` wait for them.
    Status acquire(Unit& unit, sh_stream stream);
    // Records that later copies wait for the work of `stream` so far.
    Status release(Unit& unit, sh_stream stream);

    // Joins the copy stream back into the captured stream. The capture is over, also after a failure.
    Status end();
    // Returns what was recorded, and the objects that belong to it.
    std::unique_ptr<Graph> finish();

private:
    struct Use {                      // the uses of one unit inside the capture
        sh_backend_event loaded = 0;  // recorded after its last load
        std::vector<UnitUse> ends;    // its last release on each stream
        uint64_t last = 0;            // its last release, counted in releases
    };

    Ring::Page& page_of(const Unit& unit, uint32_t k) { return pages_[ring_.wrap(uint64_t(unit.ring_offset) + k)]; }
    void find_missing(const Unit& unit);
    void find_fences(const Unit& unit);
    Status load(Unit& unit, Use& use);
    Status copy(Unit& unit, sh_backend_event loaded);
    Status note_end(Use& use, sh_stream stream);

    BackendDevice& device_;
    transfer::Lanes& lanes_;
    Registry& registry_;
    const Ring& ring_;
    UnpackMemory& unpack_;
    sh_stream stream_ = SH_STREAM_HOST;
    CaptureObjects objects_;
    std::vector<Ring::Page> pages_;  // the pages of the ring, as the graph will have filled them
    std::unordered_map<uint32_t, Use> uses_;
    uint64_t releases_ = 0;
    uint64_t loads_ = 0;
    transfer::Issued copied_;  // by all loads
    Status wrong_;             // a failure after which copies may overtake what they must come after: there is no graph
    LoadRoutes routes_;
    Load load_;  // the load that is being recorded
};

}  // namespace stagehand::core
