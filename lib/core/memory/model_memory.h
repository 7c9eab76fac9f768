// ModelMemory: the blocks of a runtime, the device memory behind them, and what has to be waited for before that memory
// is used otherwise.
#pragma once

#include <cstdint>

#include "core/device/device.h"
#include "core/device/event_pool.h"
#include "core/device/unpack_memory.h"
#include "core/memory/changes.h"
#include "core/memory/contents.h"
#include "core/memory/placement.h"
#include "core/memory/registry.h"
#include "core/memory/ring.h"
#include "core/memory/stream_table.h"

namespace stagehand::core {

struct ModelMemory {
    ModelMemory(Device& on, transfer::Carrier& carrier, uint16_t tag)
        : device(on.backend()),
          events(device),
          streams(device, events),
          registry(device, on.page_bytes(), on.staging().piece_bytes(), tag),
          contents(device, registry, ring, streams, events),
          changes(device, registry, events),
          unpack_memory(device, on.pool(), on.lanes(), carrier),
          placement(device, on.pool(), registry, ring, contents, unpack_memory) {}

    BackendDevice& device;
    EventPool events;
    StreamTable streams;
    Registry registry;
    Ring ring;
    Contents contents;
    Changes changes;
    UnpackMemory unpack_memory;
    Placement placement;
};

}  // namespace stagehand::core
