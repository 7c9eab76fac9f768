#include "host/event.h"

#include "host/stream.h"

namespace stagehand::host {

sh_status Event::record(RecordPool& pool, Stream& stream) {
    Command command;
    command.kind = Command::Kind::record;
    command.record = RecordPointer(pool.take());
    RecordPointer next = command.record;
    std::lock_guard lock(mutex_);
    // The command is queued before anyone can wait for the record. A record without a stream that completes it would
    // block its waiters for ever.
    if (sh_status status = stream.enqueue(std::move(command)); status < 0) return status;
    latest_ = std::move(next);
    return SH_OK;
}

}  // namespace stagehand::host
