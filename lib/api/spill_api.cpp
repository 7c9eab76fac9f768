// Spillers and their tickets.
#include "api/guard.h"
#include "api/spillers.h"
#include "base/flags.h"
#include "core/spill/spiller.h"

using namespace stagehand;
using namespace stagehand::api;

namespace {

using Spillers = HandleTable<core::Spiller, kSpillerTag>;

// Never destroyed, because engines may release tickets while the process exits.
Spillers& spillers() {
    static Spillers* const instance = new Spillers;
    return *instance;
}

Status unknown_spiller() {
    return Status(SH_ERROR_INVALID_HANDLE, "spiller is not a spiller of this library, or was destroyed");
}

// Runs `work` on the spiller of a handle.
template <class Work>
sh_status with_spiller(sh_spiller* handle, Work&& work) noexcept {
    return guarded([&] {
        LockedSpiller at;
        SH_TRY(find_spiller(handle, &at));
        return work(*at.spiller);
    });
}

Status check_spill_flags(uint32_t flags) {
    SH_TRY(check_flags("flags", flags, {SH_KNOWN(SH_SPILL_NOW), SH_KNOWN(SH_SPILL_KEEP)}));
    if (flags == (SH_SPILL_NOW | SH_SPILL_KEEP))
        return Status(SH_ERROR_INVALID_ARGUMENT, "flags has both SH_SPILL_NOW and SH_SPILL_KEEP");
    return Status();
}

// A caller's array of tickets to fill.
Status take_tickets(sh_ticket* tickets, uint64_t capacity, const uint64_t* out_count, std::span<sh_ticket>* out) {
    if (!out_count) return Status(SH_ERROR_INVALID_ARGUMENT, "out_count is NULL");
    SH_TRY(check_count(capacity, "capacity"));
    if (capacity && !tickets) return Status(SH_ERROR_INVALID_ARGUMENT, "tickets is NULL");
    *out = {tickets, capacity};
    return Status();
}

}  // namespace

Status stagehand::api::find_spiller(sh_spiller* handle, LockedSpiller* out) {
    auto* const slot = spillers().lock(handle, &out->lock);
    if (!slot) return unknown_spiller();
    out->spiller = slot->object.get();
    return Status();
}

extern "C" {

sh_status sh_spiller_create(sh_device* device, const sh_spiller_options* options, sh_spiller** out_spiller) {
    return guarded([&] {
        std::shared_ptr<core::Device> found;
        SH_TRY(find_device(device, &found));
        if (!out_spiller) return Status(SH_ERROR_INVALID_ARGUMENT, "out_spiller is NULL");
        sh_spiller_options wanted;
        SH_TRY(take_options(options, "options", &wanted));
        std::vector<sh_spill_class> classes;
        SH_TRY(take_array(wanted.classes, wanted.class_count, {"options.classes", "options.class_count"}, &classes));
        core::SpillerOptions read;
        SH_TRY(core::read_spiller_options(wanted, classes, &read));
        std::shared_ptr<core::Spiller> spiller;
        SH_TRY(core::Spiller::create(std::move(found), read, &spiller));
        *out_spiller = static_cast<sh_spiller*>(spillers().insert(std::move(spiller)));
        return Status();
    });
}

void sh_spiller_destroy(sh_spiller* spiller) {
    (void)guarded([&] {
        if (!spiller) return Status();
        core::Lock lock;
        auto* const slot = spillers().lock(spiller, &lock);
        if (!slot) return unknown_spiller();
        std::shared_ptr<core::Spiller> ended = spillers().remove(*slot);
        lock.unlock();
        ended.reset();
        spillers().recycle(*slot);
        return Status();
    });
}

sh_status sh_spiller_begin_step(sh_spiller* spiller, uint64_t step) {
    return with_spiller(spiller, [&](core::Spiller& at) { return at.begin_step(step); });
}

sh_status sh_spiller_end_step(sh_spiller* spiller) {
    return with_spiller(spiller, [&](core::Spiller& at) { return at.end_step(); });
}

sh_status sh_spill(sh_spiller* spiller, const sh_saved_tensor* tensor, sh_stream stream, uint32_t flags,
                   sh_ticket* out_ticket) {
    return with_spiller(spiller, [&](core::Spiller& at) {
        SH_TRY(check_struct(tensor, "tensor"));
        SH_TRY(check_spill_flags(flags));
        if (!out_ticket) return Status(SH_ERROR_INVALID_ARGUMENT, "out_ticket is NULL");
        sh_saved_tensor wanted;
        read_struct(tensor, &wanted);
        return at.spill(wanted, at.name_of_stream(stream), flags, out_ticket);
    });
}

sh_status sh_spiller_collect(sh_spiller* spiller, sh_stream stream, uint32_t flags, sh_ticket* tickets,
                             uint64_t capacity, uint64_t* out_count) {
    return with_spiller(spiller, [&](core::Spiller& at) {
        std::span<sh_ticket> to;
        SH_TRY(check_flags("flags", flags, {SH_KNOWN(SH_COLLECT_ALL)}));
        SH_TRY(take_tickets(tickets, capacity, out_count, &to));
        return at.collect(at.name_of_stream(stream), flags & SH_COLLECT_ALL, to, out_count);
    });
}

sh_status sh_ticket_get_info(sh_spiller* spiller, sh_ticket ticket, sh_ticket_info* out_info) {
    return with_spiller(spiller, [&](core::Spiller& at) {
        return fill_struct(out_info, "out_info", [&](sh_ticket_info* info) { return at.ticket_info(ticket, info); });
    });
}

sh_status sh_restore(sh_spiller* spiller, sh_ticket ticket, uint64_t address, sh_stream stream) {
    return with_spiller(spiller,
                        [&](core::Spiller& at) { return at.restore(ticket, address, at.name_of_stream(stream)); });
}

sh_status sh_spiller_get_upcoming(sh_spiller* spiller, uint64_t used_bytes, sh_ticket* tickets, uint64_t capacity,
                                  uint64_t* out_count) {
    return with_spiller(spiller, [&](core::Spiller& at) {
        std::span<sh_ticket> to;
        SH_TRY(take_tickets(tickets, capacity, out_count, &to));
        *out_count = at.upcoming(used_bytes, to);
        return Status();
    });
}

sh_status sh_prefetch_spilled(sh_spiller* spiller, const sh_ticket* tickets, const uint64_t* addresses, uint64_t count,
                              sh_stream stream) {
    return with_spiller(spiller, [&](core::Spiller& at) {
        SH_TRY(check_count(count, "count"));
        if (count && !tickets) return Status(SH_ERROR_INVALID_ARGUMENT, "tickets is NULL");
        if (count && !addresses) return Status(SH_ERROR_INVALID_ARGUMENT, "addresses is NULL");
        return at.prefetch({tickets, count}, addresses, at.name_of_stream(stream));
    });
}

sh_status sh_ticket_release(sh_spiller* spiller, sh_ticket ticket) {
    return with_spiller(spiller, [&](core::Spiller& at) { return at.release(ticket); });
}

sh_status sh_spiller_get_stats(sh_spiller* spiller, sh_spiller_stats* out_stats) {
    return with_spiller(spiller, [&](core::Spiller& at) {
        return fill_struct(out_stats, "out_stats", [&](sh_spiller_stats* stats) {
            at.stats(stats);
            return Status();
        });
    });
}

sh_status sh_spiller_trim(sh_spiller* spiller, uint64_t* out_bytes) {
    return with_spiller(spiller, [&](core::Spiller& at) {
        uint64_t freed = 0;
        const Status status = at.trim(&freed);
        if (out_bytes) *out_bytes = freed;
        return status;
    });
}

}  // extern "C"
