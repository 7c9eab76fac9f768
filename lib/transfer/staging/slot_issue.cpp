#include "transfer/staging/slot_issue.h"

#include "base/once_more.h"
#include "transfer/source/packed_reader.h"

namespace stagehand::transfer {
namespace {

// Called after copies that use the slot were issued, even if a later copy was refused.
Status record(BackendDevice& device, Slot& slot, sh_stream stream, SlotUse* out_use) {
    slot.stream = stream;
    Status status = device.event_record(slot.event, stream);
    slot.recorded = status.ok();
    *out_use = SlotUse::kInFlight;
    if (!status.ok())
        *out_use =
            once_more([&] { return device.stream_synchronize(stream); }).ok() ? SlotUse::kFree : SlotUse::kUnknown;
    return status;
}

Status record_if_used(BackendDevice& device, sh_stream stream, Slot& slot, const Status& issued, SlotIssued* out) {
    if (out->commands == 0) return issued;
    const Status recorded = record(device, slot, stream, &out->use);
    return issued.ok() ? recorded : issued;
}

}  // namespace

Status read_batch(Reader& reader, uint64_t slot_bytes, Slot& slot) {
    const Batch& batch = *slot.batch;
    const Source& source = batch.segment->source;
    const uint64_t pad = direct_padding(source, batch.begin());
    if (batch.bytes() > slot_bytes || pad > slot_bytes - batch.bytes())
        return Status(SH_ERROR_INTERNAL, "a batch of packed chunks is larger than a staging buffer");
    slot.chunks = slot.memory + pad;
    return read_chunks(reader, source, batch.chunk, batch.chunks, slot.chunks);
}

Status issue_load(BackendDevice& device, const StagedLoad& load, Slot& slot, WaitSet* waited, SlotIssued* out) {
    if (slot.batch) {
        sh_stream copies = SH_STREAM_HOST;
        const Status status = load.unpacker->issue(load.stream, load.packed, load.batches, *slot.batch, {slot.chunks},
                                                   load.waits, waited, out, &copies);
        return record_if_used(device, copies, slot, status, out);
    }
    sh_stream stream = load.stream;
    const Status status =
        load.carrier->carry(load.trip, &stream, {slot.commands, load.waits, waited, out, nullptr, true});
    return record_if_used(device, stream, slot, status, out);
}

Status issue_store(BackendDevice& device, const StagedStore& store, Slot& slot, SlotIssued* out) {
    slot.commands.clear();
    slot.scatters.clear();
    uint64_t position = 0;
    for_each_part(std::span<const StagedStore::Extent>(store.extents), slot.piece,
                  [&](const StagedStore::Extent& extent, uint64_t offset, uint64_t bytes) {
                      const uint64_t address = extent.device_address + offset;
                      const bool joins = !slot.commands.empty() && slot.commands.back().end() == address;
                      slot.commands.push_back({Command::Kind::to_host,
                                               joins,
                                               address,
                                               reinterpret_cast<uint64_t>(slot.memory + position),
                                               bytes,
                                               {}});
                      slot.scatters.push_back({static_cast<char*>(extent.host) + offset, position, bytes});
                      position += bytes;
                  });
    WaitSet none;  // the waits of the store were issued before its first slot
    const Status status = issue(device, store.stream, slot.commands, {}, &none, out);
    return record_if_used(device, store.stream, slot, status, out);
}

}  // namespace stagehand::transfer
