#include "core/spill/offloader.h"

#include <algorithm>

#include "base/log.h"
#include "base/no_throw.h"
#include "core/spill/packed_copies.h"

namespace stagehand::core {

// The oldest tensors leave first: the backward needs them last. After a failure, which may be a lack of host memory,
// the others are left for the next call.
void Offloader::make_room() {
    leave_early();
    const policy::Excess excess = memory_.excess();
    step_.departures().saw(memory_.now(), copies_.bytes().away);
    uint64_t gone = 0;
    while (gone < excess.may && !copies_.kept().empty()) {
        SavedCopy& oldest = *copies_.kept().front();
        // One copy may be larger than the bound.
        const bool room = copies_.leaving().empty() ||
                          has_room(copies_.bytes().leaving + oldest.span.bytes, copies_.leaving().size() + 1);
        if (gone >= excess.must && !room) return;
        if (!leave(oldest)) return;
        gone += oldest.span.bytes;
    }
}

// Nobody waits for these copies as long as the limits are kept, and they do not get in the way of weights.
void Offloader::leave_early() {
    while (step_.is_open() && step_.departures().is_due() && !copies_.kept().empty() &&
           links_.to_host.has_room(0, UINT64_MAX))
        if (!leave(*copies_.kept().front())) return;
}

// Whether so much may be on its way to the host without a wait.
bool Offloader::has_room(uint64_t bytes, uint64_t copies) const {
    return bytes <= memory_.may_be_leaving(options_.to_host_bytes) && copies <= options_.to_host_copies;
}

bool Offloader::leave(SavedCopy& copy) {
    // The caller has a ticket already, so that even a lack of memory must not end its call.
    const Status status = no_throw([&] {
        copy.packed = lanes_.packs(copy);
        SH_TRY(pool_.take(room_of(copy), &copy.buffer));
        copy.packed = copy.packed && copy.buffer->pinned;
        return lanes_.out(copy);
    });
    if (!status.ok()) {
        if (lanes_.are_settled()) {  // else the buffer stays until the copy has ended
            pool_.give(std::move(copy.buffer));
            copy.packed = false;
        }
        stay_after_failure(copy, status);
        return false;
    }
    copy.link_mark = links_.to_host.saved_queued(copy.span.bytes);
    copies_.move(copy, Where::leaving);
    step_.visit_all_again();
    step_.departures().left(copy.span.bytes);
    counters_.spilled += copy.tickets.size();
    counters_.spill_bytes += copy.span.bytes;
    if (copy.packed) counters_.packed_bytes += copy.span.bytes;
    const SavedBytes& bytes = copies_.bytes();
    counters_.away_peak_bytes = std::max(counters_.away_peak_bytes, bytes.leaving + bytes.away);
    return true;
}

void Offloader::stay_after_failure(SavedCopy& copy, const Status& why) {
    copies_.move(copy, Where::staying);
    counters_.failed_spills++;
    log_line(SH_LOG_WARNING, "a saved tensor of %llu bytes stays on the device: %s",
             static_cast<unsigned long long>(copy.span.bytes), why.text());
}

Status Offloader::collect(sh_stream stream, bool all, std::span<sh_ticket> tickets, uint64_t* out_count) {
    *out_count = 0;
    uint64_t waited_for = 0;
    lanes_.begin_call();
    Status status = collect_finished();
    if (Status waited = collect_beyond_bounds(stream, all, &waited_for); status.ok()) status = waited;
    if (Status handed = hand_out(stream, waited_for, tickets, out_count); status.ok()) status = handed;
    return status;
}

// Another stream may have waited for a copy, in a call that had no room for its tickets. So this stream waits for the
// newest copy among those that it is told of.
Status Offloader::hand_out(sh_stream stream, uint64_t waited_for, std::span<sh_ticket> tickets, uint64_t* out_count) {
    const SavedCopy* newest = nullptr;
    uint64_t count = 0;
    size_t looked = 0;
    for (; looked < named_.size() && count < tickets.size(); looked++) {
        const Ticket* const ticket = copies_.find(named_[looked]);
        if (!ticket) continue;  // released meanwhile
        tickets[count++] = named_[looked];
        const SavedCopy& copy = *ticket->copy;
        if (copy.has_left || copy.departure <= waited_for) continue;
        if (!newest || copy.departure > newest->departure) newest = &copy;
    }
    if (newest) SH_TRY(lanes_.check_stream(stream));
    if (newest) SH_TRY(lanes_.wait_for_out(*newest, stream));
    for (const sh_ticket ticket : tickets.first(count)) copies_.find(ticket)->named = true;
    named_.erase(named_.begin(), named_.begin() + static_cast<ptrdiff_t>(looked));
    *out_count = count;
    return Status();
}

Status Offloader::collect_finished() {
    Status first;
    while (!copies_.leaving().empty()) {
        SavedCopy& oldest = *copies_.leaving().front();
        bool left = false;
        Status status = lanes_.has_left(oldest, &left);
        if (!status.ok()) {
            if (first.ok()) first = status;
            stay_after_failure(oldest, status);  // the engine has not given its memory back yet
            continue;
        }
        if (!left) break;
        oldest.has_left = true;
        SH_TRY(put_away(oldest));
    }
    return first;
}

// Copies end in the order in which they began, so one wait covers all before it.
Status Offloader::collect_beyond_bounds(sh_stream stream, bool all, uint64_t* waited_for) {
    uint64_t bytes = copies_.bytes().leaving, count = copies_.leaving().size();
    SavedCopy* last = nullptr;
    for (SavedCopy* const copy : copies_.leaving()) {
        if (!all && has_room(bytes, count)) break;
        last = copy;
        bytes -= copy->span.bytes;
        count--;
    }
    if (!last) return Status();
    SH_TRY(lanes_.check_stream(stream));
    SH_TRY(lanes_.wait_for_out(*last, stream));
    links_.to_host.arrived(last->link_mark);
    *waited_for = last->departure;
    for (bool done = false; !done;) {
        SavedCopy& oldest = *copies_.leaving().front();
        done = &oldest == last;
        SH_TRY(put_away(oldest));
    }
    return Status();
}

Status Offloader::put_away(SavedCopy& copy) {
    if (options_.checksums) {
        SH_TRY(lanes_.wait_for_out(copy, SH_STREAM_HOST));
        copy.checksum = checksum_in_host(copy);
    }
    named_.insert(named_.end(), copy.tickets.begin(), copy.tickets.end());
    copies_.move(copy, Where::away);
    return Status();
}

}  // namespace stagehand::core
