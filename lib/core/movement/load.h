// Load: one load of a unit's missing bytes, from its beginning until it is known to have finished.
#pragma once

#include <cstdint>
#include <vector>

#include <stagehand/backend.h>

#include "base/status.h"
#include "core/memory/contents.h"
#include "policy/pieces.h"
#include "transfer/staging/staging_engine.h"

namespace stagehand::core {

class Loader;

struct Load {
    using Waits = Contents::Waits;   // a range of `waits`
    struct Range { // bytes of the unit, contiguous
        uint64_t offset = 0, bytes = 0;
    };

    Loader* loader = nullptr;
    uint32_t unit = 0;
    bool issued = false;            // `done` was recorded after its last copy
    uint32_t own_from = 0;          // pages [own_from, own.size()) of the resident part
    std::vector<policy::PageRun> runs;  // streamed pages, in the order of their copies
    std::vector<Waits> run_waits;       // of each run
    Waits own_waits;
    std::vector<Range> ranges;      // what it loads, merged
    std::vector<sh_backend_event> waits;
    sh_backend_event done = 0;
    uint64_t begun_ns = 0;
    uint64_t pieces = 0, bytes = 0;
    transfer::StagedLoad staged;
    Status failure;

    void clear() {
        issued = false;
        own_from = 0;
        runs.clear();
        run_waits.clear();
        own_waits = {};
        ranges.clear();
        waits.clear();
        staged.extents.clear();
        staged.waits.clear();
        staged.issued_pieces = staged.issued_bytes = 0;
        pieces = bytes = 0;
        failure = Status();
    }
};

}  // namespace stagehand::core
