// DirectCopies: the copies of a load whose sources need no staging, cut and joined as the device likes them.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "backend/backend_device.h"
#include "base/status.h"
#include "core/movement/load.h"
#include "core/memory/registry.h"
#include "transfer/staging/staging_engine.h"

namespace stagehand::core {

class DirectCopies {
public:
    DirectCopies(BackendDevice& device, Registry& registry) : device_(device), registry_(registry) {}

    void clear() { copies_.clear(); }
    // Adds the bytes [offset, end) of the unit, which may be written after `waits`; those that need staging go to `staged`.
    void add(Unit& unit, uint64_t offset, uint64_t end, Load::Waits waits, std::vector<transfer::StagedExtent>* staged);
    // Moves small copies to `staged` if there are many: a worker that gathers them into few large ones is faster.
    void gather_small(std::vector<transfer::StagedExtent>* staged);
    // Queues the copies in the order in which they were added, each after its waits, which are ranges of `waits`.
    Status issue(sh_stream stream, std::span<const sh_backend_event> waits, uint64_t* pieces, uint64_t* bytes);

private:
    struct Copy {
        const void* from = nullptr;
        uint64_t to = 0, bytes = 0;
        const Segment* segment = nullptr;   // null: neighbouring segments in one
        uint64_t segment_offset = 0;
        Load::Waits waits;
        bool on_device = false;             // from device memory
    };

    void add_segment(const Segment& segment, uint64_t inside, uint64_t address, uint64_t bytes, Load::Waits waits);

    BackendDevice& device_;
    Registry& registry_;
    std::vector<Copy> copies_;
};

}  // namespace stagehand::core
