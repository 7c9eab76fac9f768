// Neighbours: the open host devices of the process. A device may wait for the events of the others, copy from their
// memory, and use the host memory that they have pinned.
#pragma once

#include <memory>
#include <mutex>
#include <vector>

#include "host/device.h"

namespace stagehand::host {

// Thread-safe. A device is never used after it has left.
class Neighbours {
public:
    // The one of the process. Never destroyed, because a device that was not closed, and its threads, live until the
    // process ends.
    static Neighbours& all();

    void join(Device& device);
    void leave(Device& device);

    std::shared_ptr<Event> find_event(sh_backend_event handle) const;
    bool is_mapped(uint64_t address, uint64_t bytes) const;
    bool is_pinned(const void* memory, uint64_t bytes) const;
    // In the order of opening.
    std::vector<MemoryStatistics> statistics() const;
    std::vector<Device*> devices() const;

private:
    mutable std::mutex mutex_;
    std::vector<Device*> devices_;
};

}  // namespace stagehand::host
