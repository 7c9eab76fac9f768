#include "core/runtime/movers.h"

#include <vector>

#include "base/unlocked.h"

namespace stagehand::core {

Status Movers::open(Device& device) {
    SH_TRY(loader.open(device));
    return write_back.open();
}

Status Movers::take_failure() {
    Status status = write_back.take_failure();
    return status.ok() ? loader.take_failure() : status;
}

Status Movers::flush_all(Lock& lock) {
    std::vector<uint32_t> blocks;
    for (const Block& block : memory.registry.blocks())
        if (block.id && (block.flags & SH_BLOCK_MUTABLE)) blocks.push_back(memory.registry.index_of(block));
    return write_back.flush(blocks, lock);
}

Status Movers::quiesce(Lock& lock) {
    loader.drain(lock);
    Status status = memory.streams.synchronize_all();
    const bool used = !status.ok();  // a stream that could not be waited for may still use them
    const Status loaded = loader.synchronize();
    if (loaded.ok()) loader.note_over();
    if (status.ok()) status = loaded;
    if (Status written = write_back.finish(lock); status.ok()) status = written;
    if (!used)
        for (Unit& unit : memory.registry.units()) memory.contents.forget_uses(unit);
    return status;
}

Status Movers::synchronize(Lock& lock) {
    gate.wait(lock, [&] { return loader.queued() == 0 || gate.closing(); });
    write_back.drain(lock);
    Status status = unlocked(lock, [&] {
        const Status loads = loader.synchronize(), back = write_back.synchronize();
        return loads.ok() ? back : loads;
    });
    for (Unit& unit : memory.registry.units()) {
        Status failure;
        loader.settle(unit, &failure);
        if (status.ok()) status = failure;
    }
    loader.look();
    return status.ok() ? take_failure() : status;
}

Status Movers::order_before(sh_stream stream) {
    BackendDevice& backend = memory.device;
    std::vector<sh_backend_event> waits;
    SH_TRY(memory.streams.append_events(~uint64_t(0), &waits));
    for (const sh_backend_event event : waits) SH_TRY(backend.stream_wait_event(stream, event));
    sh_backend_event event = 0;
    SH_TRY(memory.events.take(&event));
    Status status;
    for (const bool loads : {true, false}) {
        if (status.ok()) status = loads ? loader.finish(event) : write_back.record(event);
        if (status.ok()) status = backend.stream_wait_event(stream, event);
    }
    transfer::Unpacker& unpacker = memory.unpack_memory.unpacker();
    if (status.ok() && unpacker.is_open()) status = unpacker.lead(stream, event);
    memory.events.give(&event);
    return status;
}

}  // namespace stagehand::core
