// Parts: the objects that a runtime consists of. The classes of the runtime share them. docs/architecture.md says which
// class calls which.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include <stagehand/telemetry.h>

#include "base/status.h"
#include "core/device/arbiter.h"
#include "core/device/device.h"
#include "core/device/event_pool.h"
#include "core/device/unpack_memory.h"
#include "core/memory/changes.h"
#include "core/memory/contents.h"
#include "core/memory/placement.h"
#include "core/memory/registry.h"
#include "core/memory/ring.h"
#include "core/memory/stream_table.h"
#include "core/movement/loader.h"
#include "core/movement/write_back.h"
#include "core/plan/compute_meter.h"
#include "core/plan/order.h"
#include "core/plan/order_record.h"
#include "core/plan/prefetcher.h"
#include "core/plan/unordered_cache.h"
#include "core/runtime/gate.h"

namespace stagehand::core {

struct Parts {
    // `max_bytes`: the runtime's own limit. 0: none.
    Parts(Tenant& tenant, std::shared_ptr<Device> device, uint64_t max_bytes, std::string name, uint16_t tag,
          std::mutex& mutex);

    BackendDevice& backend() const { return device->backend(); }
    uint64_t page_bytes() const { return device->page_bytes(); }
    // The pages that the runtime may have beside those that it holds.
    uint64_t pages_left() const { return max_pages - std::min(max_pages, placement.pages()); }
    // Returns the failure of a write-back that nobody waited for, or of a load that was believed, once.
    Status late_failure();
    // Returns it, too. The runtime is lost if device memory cannot be trusted any more.
    Status take_failure() { return gate.note(late_failure()); }
    Status unknown_block(sh_block id) const;
    // An error if the stream captures. The capture is not one of this runtime, so nothing of this runtime may take part
    // in it.
    Status check_no_capture(sh_stream stream);
    // Appends the units of these blocks in ascending order, without duplicates.
    Status find_units(std::span<const sh_block> ids, std::vector<uint32_t>* out);

    Tenant& tenant;  // the runtime, as the device's arbiter knows it
    const std::shared_ptr<Device> device;
    const uint64_t max_pages;  // the ceiling on the share
    sh_runtime_stats stats = {};
    Gate gate;
    EventPool events;
    StreamTable streams;
    Registry registry;
    Ring ring;
    Contents contents;
    Changes changes;
    Order order;
    OrderRecord record;
    const std::unique_ptr<transfer::Carrier> carrier;
    UnpackMemory unpack_memory;
    Placement placement;
    Loader loader;
    WriteBack write_back;
    UnorderedCache unordered;
    Prefetcher prefetcher;
    ComputeMeter meter;
};

}  // namespace stagehand::core
