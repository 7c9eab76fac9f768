// The way back of a spiller's tensors: what comes back when, into memory of the engine.
#include <algorithm>
#include <string>
#include <utility>

#include "base/size_text.h"
#include "core/spill/checksum.h"
#include "core/spill/packed_copies.h"
#include "core/spill/spiller.h"

namespace stagehand::core {

Status Spiller::restore(sh_ticket ticket, uint64_t address, sh_stream stream) {
    Ticket* found = nullptr;
    SH_TRY(find(ticket, &found));
    SavedCopy& copy = *found->copy;
    if (!address && !copy.is_on_device())
        return Status(SH_ERROR_INVALID_ARGUMENT, "address is 0, and the tensor is away");
    if (copy.ordinal != UINT32_MAX)
        order_.restore(copy.ordinal, device_->links().to_device.position() - step_.began_at);
    if (!copy.is_on_device()) {
        lanes_.begin_call();
        SH_TRY(lanes_.check_stream(stream));
        SH_TRY(check_address(copy, address));
    }
    if (copy.is_on_device()) {
        copies_.move(copy, Where::staying);
        return Status(SH_KEPT);
    }
    if (copy.prefetch.address != address) {
        SH_TRY(lanes_.come_back_after(stream));
        SH_TRY(bring_back(copy, address));
    }
    SH_TRY(join(copy, address, stream));
    if (copy.prefetch.address == address) end_prefetch(copy);
    counters_.restored++;
    return Status();
}

Status Spiller::bring_back(SavedCopy& copy, uint64_t address) {
    SH_TRY(lanes_.back(copy, address));
    copy.link_mark = device_->links().to_device.saved_queued(copy.span.bytes);
    counters_.restore_bytes += copy.span.bytes;
    return Status();
}

// Makes the stream wait for the last copy back, and compares the bytes if checksums are on.
Status Spiller::join(SavedCopy& copy, uint64_t address, sh_stream stream) {
    SH_TRY(lanes_.wait_for_back(copy, stream));
    device_->links().to_device.arrived(copy.link_mark);
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

Status Spiller::upcoming(uint64_t used, std::span<sh_ticket> tickets, uint64_t* out_count) {
    using Visited = policy::RestoreOrder::Visited;
    uint64_t count = 0, named = 0, bytes = prefetched_bytes_, copies = prefetches_;
    used_ = used;
    if (!prefetches_) use_peak_ = std::max(use_peak_, used);
    const uint64_t most = watermarks_.may_be_ahead(memory(), options_.to_device_bytes);
    order_.for_each_next([&](uint32_t ordinal) {
        const SavedCopy* const copy = step_.copies[ordinal];
        if (!copy || copy->prefetch.address) return Visited::done;
        if (copy->where != Where::away) return copy->where == Where::leaving ? Visited::again : Visited::done;
        // The engine may still have the memory of a tensor that it has not been told of.
        const sh_ticket* const ticket = copies_.find_named(*copy);
        if (!ticket) return Visited::again;
        // One copy may be larger than the bound.
        const bool room = bytes + copy->span.bytes <= most || (!copies && copies_.kept().empty());
        if (count == tickets.size() || copies >= options_.to_device_copies || !room) return Visited::stop;
        if (!has_time(ordinal, named)) return Visited::stop;
        tickets[count++] = *ticket;
        bytes += copy->span.bytes;
        named += copy->span.bytes;
        copies++;
        return Visited::again;
    });
    *out_count = count;
    return Status();
}

// Whether a copy may come back after `before` bytes of others, without holding up weights that are needed earlier. When
// it is needed is known from the step before.
bool Spiller::has_time(uint32_t ordinal, uint64_t before) const {
    const uint64_t time = order_.time_of(ordinal);
    return device_->links().to_device.has_room(before, time ? step_.began_at + time : 0);
}

Status Spiller::prefetch(std::span<const sh_ticket> tickets, const uint64_t* addresses, sh_stream stream) {
    lanes_.begin_call();
    SH_TRY(lanes_.check_stream(stream));
    for (size_t i = 0; i < tickets.size(); i++) {
        Ticket* found = nullptr;
        SH_TRY(find(tickets[i], &found));
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
        prefetched_bytes_ += copy.span.bytes;
        prefetches_++;
        counters_.prefetched++;
    }
    return Status();
}

void Spiller::end_prefetch(SavedCopy& copy) {
    if (!copy.prefetch.address) return;
    copy.prefetch = {};
    prefetched_bytes_ -= copy.span.bytes;
    prefetches_--;
}

}  // namespace stagehand::core
