#include "core/spill/spiller.h"

#include <algorithm>

#include "base/log.h"
#include "base/no_throw.h"
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
      memory_(device_->backend(), copies_, options_.keep),
      step_(options_.keep),
      offloader_(*device_, options_, pool_, lanes_, copies_, memory_, step_, counters_),
      restorer_(*device_, options_, lanes_, copies_, memory_, step_, counters_) {
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
    if (step_.is_open())
        return Status(SH_ERROR_INVALID_STATE,
                      "a step of the spiller is under way already, until sh_spiller_end_step()");
    step_.begin(step, device_->links().to_device.position());
    memory_.begin_step();
    stats(&before_step_);
    return Status();
}

Status Spiller::end_step() {
    if (!step_.is_open())
        return Status(SH_ERROR_INVALID_STATE,
                      "no step of the spiller is under way: sh_spiller_begin_step() begins one");
    counters_.steps++;
    step_.end();
    pool_.grow();
    sh_spiller_stats after = {};
    stats(&after);
    return log_.write(step_.number(), before_step_, after);
}

// --- Out ---

Status Spiller::spill(const sh_saved_tensor& tensor, sh_stream stream, uint32_t flags, sh_ticket* out) {
    SavedSpan span;
    SH_TRY(span_of(tensor, &span));
    SH_TRY(lanes_.check_stream(stream));
    SH_TRY(memory_.saw_save(tensor.used_bytes));
    SavedCopy* const shared = copies_.find_shared(tensor.storage_key, span);
    if (shared) return share(*shared, tensor.address - shared->span.address, stream, flags, out);
    const bool may_leave = !(flags & SH_SPILL_KEEP) && span.bytes >= options_.least_bytes && span.bytes > 0;
    step_.make_room(copies_.size());
    const sh_ticket ticket = copies_.add(span, tensor.storage_key, stream, may_leave ? Where::kept : Where::staying);
    SavedCopy& copy = *copies_.find(ticket)->copy;
    copy.format = tensor.format;
    step_.add(copy);
    counters_.saved++;
    if (may_leave && flags & SH_SPILL_NOW) offloader_.leave(copy);
    offloader_.make_room();
    *out = ticket;
    return Status(copy.is_on_device() && copy.where != Where::leaving ? SH_KEPT : SH_OK);
}

Status Spiller::share(SavedCopy& copy, uint64_t offset, sh_stream stream, uint32_t flags, sh_ticket* out) {
    offloader_.make_room_to_name();
    const sh_ticket ticket = copies_.add_ticket(copy, offset, stream);
    counters_.saved++;
    counters_.shared++;
    if (flags & SH_SPILL_KEEP && copy.is_on_device()) copies_.move(copy, Where::staying);
    const bool has_left = copy.where == Where::away || copy.where == Where::leaving;
    if (has_left) counters_.spilled++;
    // The caller's memory is not needed if the copy has left: the next collect() says so.
    if (copy.where == Where::away) offloader_.note_away(ticket);
    if (copy.where == Where::kept && flags & SH_SPILL_NOW) offloader_.leave(copy);
    offloader_.make_room();
    *out = ticket;
    return Status(copy.where == Where::away || copy.where == Where::leaving ? SH_OK : SH_KEPT);
}

// --- Tickets ---

Status Spiller::restore(sh_ticket ticket, uint64_t address, sh_stream stream) {
    const Ticket* found = nullptr;
    SH_TRY(copies_.find(ticket, &found));
    return restorer_.restore(*found->copy, address, stream);
}

Status Spiller::ticket_info(sh_ticket ticket, sh_ticket_info* out) {
    const Ticket* found = nullptr;
    SH_TRY(copies_.find(ticket, &found));
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
    const Ticket* found = nullptr;
    SH_TRY(copies_.find(ticket, &found));
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
    step_.remove(*copy);
    Status status;
    if (copy->buffer) {
        status = let_go(*copy, named);
        restorer_.end_prefetch(*copy);
        if (status.ok())
            pool_.give(std::move(copy->buffer));
        else
            in_use_.push_back(std::move(copy->buffer));
    }
    if (step_.is_open() || !copies_.empty()) return status;
    const Status forgotten = no_throw([&] { return step_.forget(), Status(); });
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
    out->used_peak_bytes = memory_.step_peak();
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
