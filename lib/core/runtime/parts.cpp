#include "core/runtime/parts.h"

#include <algorithm>

#include "core/device/load_carrier.h"

namespace stagehand::core {

Parts::Parts(Tenant& self, std::shared_ptr<Device> on, uint64_t max_bytes, std::string name, uint16_t tag,
             std::mutex& mutex)
    : tenant(self),
      device(std::move(on)),
      max_pages(max_bytes ? max_bytes / device->page_bytes() : UINT64_MAX),
      gate(mutex, std::move(name), stats),
      events(device->backend()),
      streams(device->backend(), events),
      registry(device->backend(), device->page_bytes(), device->staging().piece_bytes(), tag),
      contents(device->backend(), registry, ring, streams, events),
      changes(device->backend(), registry, events),
      carrier(make_carrier(*device, gate.name(), max_pages)),
      unpack_memory(device->backend(), device->pool(), device->lanes(), *carrier),
      placement(device->backend(), device->pool(), registry, ring, contents, unpack_memory),
      loader(*device, *carrier, unpack_memory.unpacker(), registry, ring, contents, changes, events, gate.mutex(),
             gate.changed(), stats, gate.name()),
      write_back(*device, registry, changes, streams, gate.mutex(), gate.changed(), stats, gate.name()),
      unordered(registry, order, contents, changes, placement, loader, write_back, streams, stats),
      prefetcher(registry, ring, contents, order, loader),
      meter(device->backend()) {
    stats.struct_size = sizeof stats;
}

Status Parts::late_failure() {
    Status status = write_back.take_failure();
    return status.ok() ? loader.take_failure() : status;
}

Status Parts::unknown_block(sh_block id) const {
    SH_TRY(gate.usable());
    return Status(SH_ERROR_INVALID_HANDLE, "block " + std::to_string(id) + " is not a block of " + gate.title());
}

Status Parts::check_no_capture(sh_stream stream) {
    const Status status = stream == SH_STREAM_HOST ? Status() : streams.check_no_capture(stream);
    return status.ok() ? status : status.within(gate.title());
}

Status Parts::find_units(std::span<const sh_block> ids, std::vector<uint32_t>* out) {
    for (const sh_block id : ids) {
        const Block* block = registry.find(id);
        if (!block) return unknown_block(id);
        out->push_back(block->unit);
    }
    std::sort(out->begin(), out->end());
    out->erase(std::unique(out->begin(), out->end()), out->end());
    return Status();
}

}  // namespace stagehand::core
