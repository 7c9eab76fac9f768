// EventPool: keeps events of a device for reuse, so that a steady state creates none.
#pragma once

#include <vector>

#include "backend/backend_device.h"
#include "base/once_more.h"
#include "base/status.h"

namespace stagehand::core {

// The runtime's mutex guards the pool.
class EventPool {
public:
    explicit EventPool(BackendDevice& device) : device_(device) {}
    ~EventPool() { drain(); }
    EventPool(const EventPool&) = delete;
    EventPool& operator=(const EventPool&) = delete;

    Status take(sh_backend_event* out) {
        if (!idle_.empty()) {
            *out = idle_.back();
            idle_.pop_back();
            return Status();
        }
        idle_.reserve(made_ + 1);  // so that give() cannot fail
        SH_TRY(device_.event_create(false, out));
        made_++;
        return Status();
    }

    void give(sh_backend_event* event) noexcept {
        if (*event) idle_.push_back(*event);
        *event = 0;
    }

    void drain() {
        for (const sh_backend_event event : idle_) (void)once_more([&] { return device_.event_destroy(event); }).ok();
        made_ -= idle_.size();
        idle_.clear();
    }

private:
    BackendDevice& device_;
    std::vector<sh_backend_event> idle_;
    size_t made_ = 0;
};

}  // namespace stagehand::core
