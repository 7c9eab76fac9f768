// BudgetShare: the part of a device's memory that belongs to one runtime, and how the device's arbiter knows the
// runtime.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>

#include "core/device/arbiter.h"
#include "core/device/device.h"

namespace stagehand::core {

struct BudgetShare {
    // `max_bytes`: the runtime's own limit. 0: none.
    BudgetShare(Tenant& self, std::shared_ptr<Device> on, uint64_t max_bytes)
        : tenant(self), device(std::move(on)), max_pages(max_bytes ? max_bytes / device->page_bytes() : UINT64_MAX) {}

    BackendDevice& backend() const { return device->backend(); }
    Arbiter& arbiter() const { return device->arbiter(); }
    Standing standing() const { return arbiter().standing(tenant); }
    uint64_t page_bytes() const { return device->page_bytes(); }
    // The pages that the runtime may have beside those that it holds.
    uint64_t pages_beside(uint64_t held) const { return max_pages - std::min(max_pages, held); }
    // The pages that it can have at most.
    uint64_t most_pages() const { return std::min(arbiter().total_pages(), max_pages); }

    Tenant& tenant;
    const std::shared_ptr<Device> device;
    const uint64_t max_pages;  // the ceiling on the share
};

}  // namespace stagehand::core
