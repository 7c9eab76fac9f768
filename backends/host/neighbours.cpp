#include "host/neighbours.h"

#include <algorithm>

namespace stagehand::host {

Neighbours& Neighbours::all() {
    static Neighbours* const instance = new Neighbours;
    return *instance;
}

void Neighbours::join(Device& device) {
    std::lock_guard lock(mutex_);
    devices_.push_back(&device);
}

void Neighbours::leave(Device& device) {
    std::lock_guard lock(mutex_);
    std::erase(devices_, &device);
}

std::shared_ptr<Event> Neighbours::find_event(sh_backend_event handle) const {
    std::lock_guard lock(mutex_);
    for (const Device* device : devices_)
        if (std::shared_ptr<Event> event = device->own_event(handle)) return event;
    return nullptr;
}

bool Neighbours::is_mapped(uint64_t address, uint64_t bytes) const {
    std::lock_guard lock(mutex_);
    return std::ranges::any_of(devices_,
                               [&](Device* device) { return device->memory().check_mapped(address, bytes) >= 0; });
}

bool Neighbours::is_pinned(const void* memory, uint64_t bytes) const {
    std::lock_guard lock(mutex_);
    return std::ranges::any_of(devices_, [&](Device* device) { return device->pinned().contains(memory, bytes); });
}

std::vector<MemoryStatistics> Neighbours::statistics() const {
    std::lock_guard lock(mutex_);
    std::vector<MemoryStatistics> result;
    for (const Device* device : devices_) result.push_back(device->statistics());
    return result;
}

std::vector<Device*> Neighbours::devices() const {
    std::lock_guard lock(mutex_);
    return devices_;
}

}  // namespace stagehand::host
