#include "core/runtime/residency.h"

#include <algorithm>
#include <utility>

#include "base/log.h"
#include "base/no_throw.h"
#include "base/size_text.h"
#include "base/unlocked.h"
#include "core/runtime/patience.h"

namespace stagehand::core {

void Residency::end_spans() {
    for (const auto how : {telemetry::Residency::kept, telemetry::Residency::reserved, telemetry::Residency::guest})
        spans_.end(how, memory_.placement.pages() * share_.page_bytes());
}

// Runs work that takes locks which come before the runtime's mutex. A runtime that is being destroyed waits for it.
Status Residency::without_mutex(Lock& lock, const std::function<Status()>& work) {
    const Gate::Inside inside(gate_);
    return unlocked(lock, work);
}

Status Residency::protect(std::span<const sh_block> ids) {
    bool may_grow = false;
    SH_TRY(protections_.protect(ids, &may_grow));
    Status status = no_throw([&] { return plan_.claim().tell_kept(), Status(); });
    if (!status.ok())
        protections_.unprotect(ids);  // all or none
    else if (may_grow && plan_.exists())
        plan_.want();
    return status;
}

void Residency::unprotect(std::span<const sh_block> ids) {
    protections_.unprotect(ids);
    plan_.claim().tell_less_kept();
}

void Residency::keep_begin() {
    if (memory_.registry.block_count() == 0)
        log_line(SH_LOG_WARNING, "%s is kept resident, but it has no blocks", gate_.title().c_str());
    if (protections_.begin_scope()) spans_.begin(telemetry::Residency::kept);
    plan_.claim().tell_kept();
}

void Residency::keep_end() {
    if (protections_.end_scope())
        spans_.end(telemetry::Residency::kept, memory_.placement.pages() * share_.page_bytes());
    plan_.claim().tell_less_kept();
}

Status Residency::reserve(uint64_t bytes, policy::Priority priority, Lock& lock, uint64_t* out_number) {
    SH_TRY(gate_.usable());
    uint64_t pages = bytes / share_.page_bytes() + (bytes % share_.page_bytes() != 0);
    if (!bytes) {
        if (!plan_.exists() && !step_order_.order.known())
            return Status(
                SH_ERROR_INVALID_STATE,
                gate_.title() + " cannot reserve what it uses: set a schedule, run a step, or pass a number of bytes");
        if (!plan_.exists()) SH_TRY(plan_.change(lock, true));
        pages = plan_.result().pages();
    }
    pages = std::min(pages, share_.max_pages);  // the runtime never takes more, and the rest would be lost to all
    SH_TRY(without_mutex(lock, [&] {
        share_.device->notice_free_memory(true);
        SH_TRY(share_.arbiter().reserve(share_.tenant, pages, priority, out_number));
        try_to_make_room();
        return Status();
    }));
    spans_.begin(telemetry::Residency::reserved);
    return Status();
}

void Residency::release_reservation(uint64_t number) {
    const uint64_t bytes = share_.standing().reserved * share_.page_bytes();
    if (share_.arbiter().release_reservation(share_.tenant, number)) spans_.end(telemetry::Residency::reserved, bytes);
}

Status Residency::guest_begin(const sh_guest_options& options, Lock& lock) {
    SH_TRY(gate_.running());
    SH_TRY(gate_.no_capture());
    SH_TRY(gate_.at_edge("become a guest"));
    const uint64_t page = share_.page_bytes();
    const auto pages_of = [&](uint64_t bytes) { return bytes / page + (bytes % page != 0); };
    const Needs needs = plan_.claim().needs();
    GuestTerms terms;
    terms.least_pages = needs.least_pages;
    terms.pages = std::min(options.bytes ? pages_of(options.bytes) : needs.wanted_pages,
                           std::max(share_.max_pages, needs.least_pages));
    terms.asked_pages = options.bytes ? terms.pages : 0;
    terms.workspace_pages = pages_of(options.workspace_bytes);
    terms.shrink = options.flags & SH_GUEST_SHRINK;
    if (terms.pages < terms.least_pages)
        return Status(SH_ERROR_BUDGET, gate_.title() + " cannot run as a guest with " +
                                           exact_size_text(options.bytes ? options.bytes : terms.pages * page) +
                                           ": the smallest that works is " + exact_size_text(terms.least_pages * page));
    SH_TRY(without_mutex(lock, [&] {
        share_.device->notice_free_memory(true);
        SH_TRY(share_.arbiter().begin_guest(share_.tenant, terms));
        share_.device->limit_pool();
        try_to_make_room();
        return Status();
    }));
    const bool was_leaving = std::exchange(leaving_, false);
    // Pages beyond the guest's terms do not belong to the guest any more. If the guest cannot give them up now, it does
    // so when its step begins.
    const bool may_change =
        plan_.exists() && !gate_.closing() && !gate_.in_step() && gate_.views() == 0 && !graphs_.hold_the_plan();
    if (may_change) (void)no_throw([&] { return plan_.change(lock, false); }).ok();
    if (const Status status =
            no_throw([&] { return options.wait_ns ? wait_for_room(options.wait_ns, lock) : Status(); });
        !status.ok()) {
        if (share_.arbiter().end_guest(share_.tenant)) leaving_ = was_leaving;
        share_.device->limit_pool();
        return status;
    }
    spans_.begin(telemetry::Residency::guest);
    return Status();
}

// The grant holds even if other runtimes lack the memory to give up theirs at once. They give it up when they are asked
// again.
void Residency::try_to_make_room() noexcept {
    (void)no_throw([&] { return share_.arbiter().reclaimer().make_room(share_.tenant), Status(); }).ok();
}

// Waits until other runtimes have given up what this runtime was promised.
Status Residency::wait_for_room(uint64_t wait_ns, Lock& lock) {
    Patience patience(wait_ns);
    for (;;) {
        Status room;
        SH_TRY(without_mutex(lock, [&] {
            share_.device->notice_free_memory(true);
            share_.arbiter().reclaimer().make_room(share_.tenant);
            room = share_.arbiter().check_room(share_.tenant);
            return Status();
        }));
        SH_TRY(gate_.usable());
        if (room.ok()) return room;
        if (patience.is_over()) return room.within(gate_.title() + " was not let in as a guest before wait_ns passed");
        const Gate::Inside inside(gate_);
        patience.pause(gate_.changed(), lock, [&] { return gate_.closing(); });
    }
}

Status Residency::guest_end(Lock& lock) {
    const uint64_t bytes = share_.standing().guest * share_.page_bytes();
    if (!share_.arbiter().end_guest(share_.tenant)) return Status();
    spans_.end(telemetry::Residency::guest, bytes);
    share_.device->limit_pool();
    leaving_ = true;
    return leave_if_due(lock);
}

Status Residency::leave_if_due(Lock& lock) {
    if (!leaving_ || gate_.in_step() || gate_.views() || graphs_.hold_the_plan() || gate_.lost()) return Status();
    SH_TRY(shrink_to(0, lock));
    // Another call may have come in between, or other runtimes may have the pages that this one needs beside its
    // reservation. Then it gives the rest back at its next edge.
    const Standing standing = share_.standing();
    leaving_ = memory_.placement.pages() > std::max({standing.kept, standing.reserved, plan_.result().least_pages});
    return Status();
}

// Reduces what the runtime holds until it is used again: to `pages`, or to what is protected and reserved if that is
// more.
Status Residency::shrink_to(uint64_t pages, Lock& lock) {
    const auto certain = [&] {
        const Standing standing = share_.standing();
        return std::max(standing.kept, standing.reserved);
    };
    uint64_t target = std::max(pages, certain());
    if (share_.standing().granted <= target) return Status();
    // Without a plan, the runtime holds what a failed plan has left.
    if ((!plan_.exists() || target < plan_.result().least_pages) && certain() == 0) {
        // From here on the runtime has agreed to hold nothing. A reservation that is made for it afterwards finds it
        // without memory.
        uint64_t none = 0;
        SH_TRY(share_.arbiter().request(share_.tenant, Needs(), false, &none));
        if (certain() == 0) return plan_.vacate(lock);
        target = std::max(pages, certain());
    }
    if (!plan_.exists()) return Status();
    plan_.claim().trim_to(std::max(target, plan_.result().least_pages));
    // The runtime may need more than that now.
    if (Status status = plan_.change(lock, false); status.code() != SH_ERROR_BUDGET && status.code() != SH_ERROR_BUSY)
        SH_TRY(status);
    return share_.device->pool().trim(0);
}

Status Residency::trim(uint64_t keep_bytes, uint64_t* out_bytes, Lock& lock) {
    SH_TRY(gate_.usable());
    SH_TRY(gate_.no_capture());
    SH_TRY(gate_.at_edge("be trimmed"));
    if (graphs_.hold_the_plan()) SH_TRY(graphs_.held());
    SH_TRY(shrink_to(keep_bytes / share_.page_bytes(), lock));
    if (out_bytes) *out_bytes = memory_.placement.pages() * share_.page_bytes();
    return Status();
}

void Residency::take_share(Lock& lock) {
    if (!gate_.is_idle() || graphs_.hold_the_plan()) return;
    Status status = leaving_ ? leave_if_due(lock) : plan_.exists() ? plan_.change(lock, false) : Status();
    // The runtime may need more by now than its share. Then it gives all its memory back, so that it holds none that
    // belongs to others.
    const Standing standing = share_.standing();
    const bool owes = standing.granted > standing.share && (!plan_.exists() || status.code() == SH_ERROR_BUDGET);
    if (owes && gate_.is_idle() && !graphs_.hold_the_plan()) status = shrink_to(0, lock);
    if (!status.ok())
        log_line(SH_LOG_WARNING, "%s: its share could not be changed: %s", gate_.name().c_str(), status.text());
}

}  // namespace stagehand::core
