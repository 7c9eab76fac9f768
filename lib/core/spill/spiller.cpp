#include "core/spill/spiller.h"

#include <algorithm>

#include "base/log.h"
#include "base/no_throw.h"
#include "core/spill/packed_copies.h"
#include "core/spill/room_for_one.h"

namespace stagehand::core {

Status Spiller::create(std::shared_ptr<Device> device, const SpillerOptions& options, std::shared_ptr<Spiller>* out) {
    auto spiller = std::make_shared<Spiller>(std::move(device), options);
    SH_TRY(spiller->lanes_.open(options.packs));
    SH_TRY(spiller->pool_.prepare());
    *out = std::move(spiller);
    return Status();
}

Spiller::Spiller(std::shared_ptr<Device> device, const SpillerOptions& options)
    : device_(std::move(device)),
      options_(options),
      pool_(device_->backend(), {options_.classes, options_.pool_bytes}),
      lanes_(*device_),
      watermarks_(options.keep),
      departures_(options.keep) {
    device_->links().to_device.spiller_opens();
    device_->links().to_host.spiller_opens();
}

Spiller::~Spiller() {
    device_->links().to_device.spiller_closes();
    device_->links().to_host.spiller_closes();
    lanes_.stalls().forget();
    if (!lanes_.settle().ok()) {
        log_line(SH_LOG_WARNING, "the driver does not tell when copies of spilled tensors end: their memory is lost");
        pool_.abandon();  // buffers of copies do not free their memory by themselves
        return;
    }
    copies_.for_each([&](SavedCopy& copy) { pool_.give(std::move(copy.buffer)); });
    for (auto& buffer : in_use_) pool_.give(std::move(buffer));
}

// --- Steps ---

Status Spiller::begin_step(uint64_t step) {
    if (step_.open)
        return Status(SH_ERROR_INVALID_STATE,
                      "a step of the spiller is under way already, until sh_spiller_end_step()");
    forget_step();
    departures_.begin_step();
    use_peak_ = 0;
    counters_.used_peak_bytes = 0;
    stats(&step_.before);
    step_.number = step;
    step_.began_at = device_->links().to_device.position();
    step_.open = true;
    return Status();
}

Status Spiller::end_step() {
    if (!step_.open)
        return Status(SH_ERROR_INVALID_STATE,
                      "no step of the spiller is under way: sh_spiller_begin_step() begins one");
    step_.open = false;
    counters_.steps++;
    departures_.end_step();
    forget_step();
    pool_.grow();
    sh_spiller_stats after = {};
    stats(&after);
    return log_.write(step_.number, step_.before, after);
}

// Tickets of the step stay, but their numbers mean nothing in the next one.
void Spiller::forget_step() {
    order_.end_step();
    for (SavedCopy* copy : step_.copies)
        if (copy) copy->ordinal = UINT32_MAX;
    step_.copies.clear();
}

// An engine without steps may always have a ticket that lives. Its order begins again when most of it is of the past.
void Spiller::forget_what_ended() {
    constexpr size_t kFew = 4096;
    if (!step_.open && step_.copies.size() > kFew && step_.copies.size() / 4 > copies_.size()) forget_step();
}

// --- Out ---

Status Spiller::watch_use(uint64_t told) {
    uint64_t used = told;
    if (!told && watermarks_.limits().watches_use()) {
        uint64_t free = 0, total = 0;
        SH_TRY(device_->backend().memory_info(&free, &total));
        used = total - free;
    }
    used_ = used;
    use_peak_ = std::max(use_peak_, used);
    counters_.used_peak_bytes = std::max(counters_.used_peak_bytes, used);
    return Status();
}

Status Spiller::spill(const sh_saved_tensor& tensor, sh_stream stream, uint32_t flags, sh_ticket* out) {
    SavedSpan span;
    SH_TRY(span_of(tensor, &span));
    SH_TRY(lanes_.check_stream(stream));
    SH_TRY(watch_use(tensor.used_bytes));
    SavedCopy* const shared = copies_.find_shared(tensor.storage_key, span);
    if (shared) return share(*shared, tensor.address - shared->span.address, stream, flags, out);
    const bool may_leave = !(flags & SH_SPILL_KEEP) && span.bytes >= options_.least_bytes && span.bytes > 0;
    forget_what_ended();
    make_room_for_one(step_.copies);
    const sh_ticket ticket = copies_.add(span, tensor.storage_key, stream, may_leave ? Where::kept : Where::staying);
    SavedCopy& copy = *copies_.find(ticket)->copy;
    copy.format = tensor.format;
    copy.ordinal = order_.save();
    step_.copies.push_back(&copy);
    counters_.saved++;
    if (may_leave && flags & SH_SPILL_NOW) leave(copy);
    make_room();
    *out = ticket;
    return Status(copy.is_on_device() && copy.where != Where::leaving ? SH_KEPT : SH_OK);
}

Status Spiller::share(SavedCopy& copy, uint64_t offset, sh_stream stream, uint32_t flags, sh_ticket* out) {
    make_room_for_one(named_);
    const sh_ticket ticket = copies_.add_ticket(copy, offset, stream);
    counters_.saved++;
    counters_.shared++;
    if (flags & SH_SPILL_KEEP && copy.is_on_device()) copies_.move(copy, Where::staying);
    const bool has_left = copy.where == Where::away || copy.where == Where::leaving;
    if (has_left) counters_.spilled++;
    // The caller's memory is not needed if the copy has left: the next collect() says so.
    if (copy.where == Where::away) named_.push_back(ticket);
    if (copy.where == Where::kept && flags & SH_SPILL_NOW) leave(copy);
    make_room();
    *out = ticket;
    return Status(copy.where == Where::away || copy.where == Where::leaving ? SH_OK : SH_KEPT);
}

// The oldest tensors leave first: the backward needs them last. After a failure, which may be a lack of host memory,
// the others are left for the next call.
void Spiller::make_room() {
    leave_early();
    const policy::Excess excess = watermarks_.look(memory());
    departures_.saw(memory(), copies_.bytes().away);
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
void Spiller::leave_early() {
    while (step_.open && departures_.is_due() && !copies_.kept().empty() &&
           device_->links().to_host.has_room(0, UINT64_MAX))
        if (!leave(*copies_.kept().front())) return;
}

// Whether so much may be on its way to the host without a wait.
bool Spiller::has_room(uint64_t bytes, uint64_t copies) const {
    return bytes <= watermarks_.may_be_leaving(memory(), options_.to_host_bytes) && copies <= options_.to_host_copies;
}

// Afterwards the copy is not `kept` any more, whether this succeeds or not.
bool Spiller::leave(SavedCopy& copy) {
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
    copy.link_mark = device_->links().to_host.saved_queued(copy.span.bytes);
    copies_.move(copy, Where::leaving);
    order_.visit_all_again();
    departures_.left(copy.span.bytes);
    counters_.spilled += copy.tickets.size();
    counters_.spill_bytes += copy.span.bytes;
    if (copy.packed) counters_.packed_bytes += copy.span.bytes;
    const SavedBytes& bytes = copies_.bytes();
    counters_.away_peak_bytes = std::max(counters_.away_peak_bytes, bytes.leaving + bytes.away);
    return true;
}

void Spiller::stay_after_failure(SavedCopy& copy, const Status& why) {
    copies_.move(copy, Where::staying);
    counters_.failed_spills++;
    log_line(SH_LOG_WARNING, "a saved tensor of %llu bytes stays on the device: %s",
             static_cast<unsigned long long>(copy.span.bytes), why.text());
}

Status Spiller::collect(sh_stream stream, bool all, std::span<sh_ticket> tickets, uint64_t* out_count) {
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
Status Spiller::hand_out(sh_stream stream, uint64_t waited_for, std::span<sh_ticket> tickets, uint64_t* out_count) {
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

Status Spiller::collect_finished() {
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
Status Spiller::collect_beyond_bounds(sh_stream stream, bool all, uint64_t* waited_for) {
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
    device_->links().to_host.arrived(last->link_mark);
    *waited_for = last->departure;
    for (bool done = false; !done;) {
        SavedCopy& oldest = *copies_.leaving().front();
        done = &oldest == last;
        SH_TRY(put_away(oldest));
    }
    return Status();
}

Status Spiller::put_away(SavedCopy& copy) {
    if (options_.checksums) {
        SH_TRY(lanes_.wait_for_out(copy, SH_STREAM_HOST));
        copy.checksum = checksum_in_host(copy);
    }
    named_.insert(named_.end(), copy.tickets.begin(), copy.tickets.end());
    copies_.move(copy, Where::away);
    return Status();
}

// --- Tickets ---

Status Spiller::find(sh_ticket ticket, Ticket** out) {
    *out = copies_.find(ticket);
    if (*out) return Status();
    return Status(SH_ERROR_INVALID_HANDLE,
                  "ticket " + std::to_string(ticket) + " is not one of this spiller, or has been released");
}

Status Spiller::ticket_info(sh_ticket ticket, sh_ticket_info* out) {
    Ticket* found = nullptr;
    SH_TRY(find(ticket, &found));
    const SavedCopy& copy = *found->copy;
    switch (copy.where) {
        case Where::kept:
        case Where::staying:
            out->state = SH_TICKET_KEPT;
            break;
        case Where::leaving:
            out->state = SH_TICKET_LEAVING;
            break;
        case Where::away:
            out->state = copy.prefetch.address ? SH_TICKET_PREFETCHED : SH_TICKET_AWAY;
            break;
    }
    out->bytes = copy.span.bytes;
    out->offset = found->offset;
    out->copy = copy.number;
    out->prefetched_address = copy.prefetch.address;
    return Status();
}

Status Spiller::release(sh_ticket ticket) {
    Ticket* found = nullptr;
    SH_TRY(find(ticket, &found));
    make_room_for_one(in_use_);  // before anything changes
    leave_streams(*found);
    const bool named = found->named;
    std::unique_ptr<SavedCopy> ended = copies_.remove_ticket(ticket);
    return ended ? end_copy(std::move(ended), named) : Status();
}

// The stream of the ticket may be gone when the copy ends. So it waits now for a copy that uses the engine's memory,
// unless another ticket keeps it in the set.
void Spiller::leave_streams(const Ticket& ticket) {
    SavedCopy& copy = *ticket.copy;
    if (copy.streams.leave(ticket.stream) && copy.buffer && copy.is_on_device())
        (void)lanes_.wait_for_out(copy, ticket.stream).ok();  // on failure, the lanes are not settled
}

Status Spiller::end_copy(std::unique_ptr<SavedCopy> copy, bool named) {
    if (copy->ordinal != UINT32_MAX) step_.copies[copy->ordinal] = nullptr;
    Status status;
    if (copy->buffer) {
        status = let_go(*copy, named);
        end_prefetch(*copy);
        if (status.ok())
            pool_.give(std::move(copy->buffer));
        else
            in_use_.push_back(std::move(copy->buffer));
    }
    if (step_.open || !copies_.empty()) return status;
    const Status forgotten = no_throw([&] { return forget_step(), Status(); });
    return status.ok() ? forgotten : status;
}

// Makes the streams wait for copies that use the engine's memory, as those of the tickets do already. The pool's own
// memory is reused in the order of the lanes. Memory that is not pinned goes back to the system now.
Status Spiller::let_go(const SavedCopy& copy, bool named) {
    Status status;
    const auto wait = [&](Status waited) {
        if (status.ok()) status = waited;
    };
    if (!lanes_.are_settled()) return lanes_.settle();
    // The stream of a save may be gone when its copy has been collected, on whatever stream that was.
    if (!copy.is_on_device() && !named && !copy.has_left) wait(lanes_.wait_for_out(copy, SH_STREAM_HOST));
    if (copy.prefetch.address) wait(lanes_.wait_for_back(copy, copy.prefetch.stream));
    if (!copy.buffer->pinned) {
        wait(lanes_.wait_for_out(copy, SH_STREAM_HOST));
        wait(lanes_.wait_for_back(copy, SH_STREAM_HOST));
    }
    return status;
}

// --- Memory and figures ---

Status Spiller::trim(uint64_t* freed_bytes) {
    pool_.wait_for_growth();
    const Status settled = in_use_.empty() ? Status() : lanes_.settle();
    if (settled.ok()) {
        for (auto& buffer : in_use_) pool_.give(std::move(buffer));
        in_use_.clear();
    }
    SH_TRY(pool_.trim([this](const transfer::PoolBuffer& buffer) { return lanes_.settle(buffer); }, freed_bytes));
    return settled;
}

void Spiller::stats(sh_spiller_stats* out) {
    lanes_.stalls().look();
    const uint32_t size = out->struct_size;
    *out = counters_;
    out->struct_size = size;
    out->stall_count = lanes_.stalls().count();
    out->stall_ns = lanes_.stalls().ns();
    const SavedBytes& bytes = copies_.bytes();
    out->kept_bytes = bytes.kept + bytes.staying;
    out->leaving_bytes = bytes.leaving;
    out->away_bytes = bytes.away;
    const transfer::ClassPoolFigures pool = pool_.figures();
    out->pool_hits = pool.hits;
    out->pool_misses = pool.misses;
    out->pool_bytes = pool.pinned_bytes;
    out->unpinned_bytes = pool.unpinned_bytes;
}

}  // namespace stagehand::core
