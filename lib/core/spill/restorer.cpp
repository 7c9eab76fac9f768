#include "core/spill/restorer.h"

#include <string>
#include <utility>

#include "base/size_text.h"
#include "core/spill/checksum.h"
#include "core/spill/packed_copies.h"

namespace stagehand::core {

Status Restorer::restore(SavedCopy& copy, uint64_t address, sh_stream stream) {
    if (!address && !copy.is_on_device())
        return Status(SH_ERROR_INVALID_ARGUMENT, "address is 0, and the tensor is away");
    step_.note_restore(copy, links_.to_device.position());
    if (copy.is_on_device()) {
        copies_.move(copy, Where::staying);
        return Status(SH_KEPT);
    }
    lanes_.begin_call();
    SH_TRY(lanes_.check_stream(stream));
    SH_TRY(check_address(copy, address));
    if (copy.prefetch.address != address) {
        SH_TRY(lanes_.come_back_after(stream));
        SH_TRY(bring_back(copy, address));
    }
    SH_TRY(join(copy, address, stream));
    if (copy.prefetch.address == address) end_prefetch(copy);
    counters_.restored++;
    return Status();
}

Status Restorer::bring_back(SavedCopy& copy, uint64_t address) {
    SH_TRY(lanes_.back(copy, address));
    copy.link_mark = links_.to_device.saved_queued(copy.span.bytes);
    counters_.restore_bytes += copy.span.bytes;
    return Status();
}

// Makes the stream wait for the last copy back, and compares the bytes if checksums are on.
Status Restorer::join(SavedCopy& copy, uint64_t address, sh_stream stream) {
    SH_TRY(lanes_.wait_for_back(copy, stream));
    links_.to_device.arrived(copy.link_mark);
    if (!options_.checksums) return Status();
    SH_TRY(lanes_.wait_for_back(copy, SH_STREAM_HOST));
    uint64_t restored = 0;
    SH_TRY(checksum_on_device(lanes_.to_host(), address, copy.span.bytes, &restored));
    if (restored == copy.checksum) return Status();
    const bool in_host_memory = checksum_in_host(copy) != copy.checksum;
    return Status(SH_ERROR_CHECKSUM, "a tensor of " + size_text(copy.span.bytes) + " came back with other bytes: " +
                                         (in_host_memory ? "its host memory was overwritten"
                                                         : "its device memory was overwritten, or the copy failed"));
}

uint64_t Restorer::upcoming(uint64_t used, std::span<sh_ticket> tickets) {
    using Visited = policy::RestoreOrder::Visited;
    memory_.saw_backward(used);
    uint64_t count = 0, named = 0;
    uint64_t bytes = memory_.prefetched_bytes(), copies = memory_.prefetches();
    const uint64_t most = memory_.may_be_ahead(options_.to_device_bytes);
    step_.for_each_next([&](const SavedCopy* copy) {
        if (!copy || copy->prefetch.address) return Visited::done;
        if (copy->where != Where::away) return copy->where == Where::leaving ? Visited::again : Visited::done;
        // The engine may still have the memory of a tensor that it has not been told of.
        const sh_ticket* const ticket = copies_.find_named(*copy);
        if (!ticket) return Visited::again;
        // One copy may be larger than the bound.
        const bool room = bytes + copy->span.bytes <= most || (!copies && copies_.kept().empty());
        if (count == tickets.size() || copies >= options_.to_device_copies || !room) return Visited::stop;
        if (!has_time(*copy, named)) return Visited::stop;
        tickets[count++] = *ticket;
        bytes += copy->span.bytes;
        named += copy->span.bytes;
        copies++;
        return Visited::again;
    });
    return count;
}

// Whether a copy may come back after `before` bytes of others, without holding up weights that are needed earlier.
bool Restorer::has_time(const SavedCopy& copy, uint64_t before) const {
    return links_.to_device.has_room(before, step_.needed_at(copy));
}

Status Restorer::prefetch(std::span<const sh_ticket> tickets, const uint64_t* addresses, sh_stream stream) {
    lanes_.begin_call();
    SH_TRY(lanes_.check_stream(stream));
    for (size_t i = 0; i < tickets.size(); i++) {
        const Ticket* found = nullptr;
        SH_TRY(copies_.find(tickets[i], &found));
        if (!addresses[i]) return Status(SH_ERROR_INVALID_ARGUMENT, "addresses[" + std::to_string(i) + "] is 0");
        SH_TRY(check_address(*found->copy, addresses[i]));
    }
    bool first = true;
    for (size_t i = 0; i < tickets.size(); i++) {
        SavedCopy& copy = *copies_.find(tickets[i])->copy;
        if (copy.where != Where::away || copy.prefetch.address) continue;
        if (std::exchange(first, false)) SH_TRY(lanes_.come_back_after(stream));
        SH_TRY(bring_back(copy, addresses[i]));
        copy.prefetch = {addresses[i], stream};
        memory_.prefetched(copy.span.bytes);
        counters_.prefetched++;
    }
    return Status();
}

void Restorer::end_prefetch(SavedCopy& copy) {
    if (!copy.prefetch.address) return;
    copy.prefetch = {};
    memory_.prefetch_ends(copy.span.bytes);
}

}  // namespace stagehand::core
