// Load: one load of a unit's missing bytes, from its beginning until it is known to have finished.
#pragma once

#include <cstdint>
#include <vector>

#include <stagehand/backend.h>

#include "base/status.h"
#include "core/memory/contents.h"
#include "policy/pieces.h"
#include "transfer/carrier/carrier.h"
#include "transfer/carrier/issue.h"
#include "transfer/staging/staging_engine.h"

namespace stagehand::core {

class Loader;

struct Load {
    struct Range {  // contiguous bytes of the unit
        uint64_t offset = 0, bytes = 0;
    };

    Loader* loader = nullptr;
    uint32_t unit = 0;
    bool after_all = false;                  // it may write what an earlier load still writes: see Contents
    bool issued = false;                     // `done` was recorded after the last copy
    uint32_t own_from = 0;                   // loads pages [own_from, own.size()) of the resident part
    std::vector<policy::PageRun> runs;       // streamed pages, in the order of their copies
    std::vector<transfer::Waits> run_waits;  // for each run: its range of `waits`
    transfer::Waits own_waits;
    std::vector<Range> ranges;  // the bytes that are loaded, merged
    std::vector<sh_backend_event> waits;
    std::vector<transfer::Command> rest;  // after the copies: the waits of pages to which nothing is copied
    transfer::WaitSet waited;             // the entries of `waits` for which the copies have waited
    sh_backend_event done = 0;
    uint64_t begun_ns = 0;
    uint64_t link_mark = 0;  // its place in the queue of the link
    transfer::Trip trip = 0;
    transfer::Issued copied;
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
        rest.clear();
        trip = 0;
        staged.extents.clear();
        staged.packed.clear();
        staged.batches.clear();
        staged.waits.clear();
        staged.issued_pieces = staged.issued_bytes = staged.read_ns = 0;
        copied = {};
        link_mark = 0;
        failure = Status();
    }
};

}  // namespace stagehand::core
