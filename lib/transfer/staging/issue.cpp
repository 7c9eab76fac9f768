#include "transfer/staging/issue.h"

#include <algorithm>

namespace stagehand::transfer {
namespace {

Status issue_waits(BackendDevice& device, const StagedLoad& load, const CopyCommand& command,
                   WaitSet* waited) {
    for (uint32_t i = command.first_wait; i < command.first_wait + command.wait_count; i++) {
        if (waited->has(i)) continue;
        if (load.waits[i]) SH_TRY(device.stream_wait_event(load.stream, load.waits[i]));
        waited->add(i);
    }
    return Status();
}

bool continues(const CopyCommand& a, const CopyCommand& b) {
    return a.device_address + a.bytes == b.device_address && a.slot_offset + a.bytes == b.slot_offset;
}

// After copies that use the slot were issued, even if a later one was refused.
Status record(BackendDevice& device, Slot& slot, sh_stream stream, SlotUse* out_use) {
    slot.stream = stream;
    Status status = device.event_record(slot.event, stream);
    slot.recorded = status.ok();
    *out_use = SlotUse::kInFlight;
    if (!status.ok()) *out_use = device.stream_synchronize(stream).ok() ? SlotUse::kFree : SlotUse::kUnknown;
    return status;
}

}  // namespace

Status issue_load(BackendDevice& device, const StagedLoad& load, Slot& slot, WaitSet* waited, Issued* out) {
    Status status;
    for (size_t i = 0; status.ok() && i < slot.commands.size();) {
        CopyCommand whole = slot.commands[i];
        status = issue_waits(device, load, whole, waited);
        if (!status.ok()) break;
        for (i++; i < slot.commands.size() && continues(whole, slot.commands[i]) &&
                  waited->has_all(slot.commands[i].first_wait, slot.commands[i].wait_count);
             i++)
            whole.bytes += slot.commands[i].bytes;
        status = device.copy_to_device(load.stream, whole.device_address, slot.memory + whole.slot_offset,
                                       whole.bytes);
        if (!status.ok()) break;
        out->commands++;
        out->bytes += whole.bytes;
    }
    if (out->commands == 0) return status;
    const Status recorded = record(device, slot, load.stream, &out->use);
    return status.ok() ? recorded : status;
}

Status issue_store(BackendDevice& device, const StagedStore& store, Slot& slot, Issued* out) {
    const std::span<const StagedStore::Extent> extents(store.extents);
    uint64_t position = 0;
    slot.scatters.clear();  // all of what may need memory comes before the first copy
    for_each_part(extents, slot.piece,
                  [&](const StagedStore::Extent& extent, uint64_t offset, uint64_t bytes) {
                      slot.scatters.push_back({static_cast<char*>(extent.host) + offset, position, bytes});
                      position += bytes;
                  });
    Status status;
    CopyCommand whole;
    const auto copy = [&] {
        if (!status.ok() || whole.bytes == 0) return;
        status = device.copy_to_host(store.stream, slot.memory + whole.slot_offset, whole.device_address,
                                     whole.bytes);
        if (!status.ok()) return;
        out->commands++;
        out->bytes += whole.bytes;
    };
    position = 0;
    for_each_part(extents, slot.piece,
                  [&](const StagedStore::Extent& extent, uint64_t offset, uint64_t bytes) {
                      const CopyCommand part = {extent.device_address + offset, position, bytes, 0, 0};
                      position += bytes;
                      if (whole.bytes > 0 && continues(whole, part)) {
                          whole.bytes += bytes;
                          return;
                      }
                      copy();
                      whole = part;
                  });
    copy();
    if (out->commands == 0) return status;
    const Status recorded = record(device, slot, store.stream, &out->use);
    return status.ok() ? recorded : status;
}

void issue_straight(BackendDevice& device, const StagedStore& store, std::vector<uint8_t>* straight,
                    bool* out_any) {
    for (size_t i = 0; i < store.extents.size(); i++) {
        const StagedStore::Extent& extent = store.extents[i];
        uint32_t pinned = 0;
        if (extent.bytes == 0 || !device.host_is_pinned(extent.host, extent.bytes, &pinned).ok() || !pinned)
            continue;
        // Pinned in several registrations it may be refused: then it is staged like memory that is not
        // pinned.
        if (!device.copy_to_host(store.stream, extent.host, extent.device_address, extent.bytes).ok())
            continue;
        (*straight)[i] = 1;
        *out_any = true;
    }
}

}  // namespace stagehand::transfer
