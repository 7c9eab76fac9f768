// What stays on the device, and what is given back on request.
#include <algorithm>

#include "base/log.h"
#include "base/size_text.h"
#include "base/unlocked.h"
#include "core/runtime/patience.h"
#include "core/runtime/runtime.h"
#include "telemetry/trace.h"

namespace stagehand::core {

// Work that takes locks which come before the runtime's mutex; a runtime that is being destroyed waits for it.
Status Runtime::without_mutex(Lock& lock, const std::function<Status()>& work) {
    const Gate::Inside inside(gate_);
    return unlocked(lock, work);
}

// Of what it holds now: all in a scope; else what protected blocks have, and what it needs to run beside them.
uint64_t Runtime::kept_pages() {
    if (!kept_scopes_ && !protected_units_) return 0;
    const uint64_t all = std::max(placement_.pages(), plan_.resident_pages + plan_.ring_pages + plan_.unordered_pages);
    if (kept_scopes_) return all;
    uint64_t own = 0;
    for (const Unit& unit : registry_.units())
        if (unit.protections) own += unit.own.size();
    return own ? std::min(all, std::max(own + plan_.least_pages, planner_.pages_with_kept(order_, limits()))) : 0;
}

void Runtime::tell_kept() { device_->arbiter().keep(*this, kept_pages()); }

Status Runtime::protect(std::span<const sh_block> ids) {
    for (const sh_block id : ids)
        if (!registry_.find(id)) return unknown_block(id);
    for (const sh_block id : ids) {
        Block& block = *registry_.find(id);
        Unit& unit = registry_.unit(block.unit);
        block.detail->protections++;
        if (unit.protections++) continue;
        protected_units_++;
        if (unit.memory == Memory::unordered) unordered_.pin(unit);
        if (planned_ && order_.contains(block.unit) && unit.own.size() < unit.pages) replan_wanted_ = true;   // it may have more
    }
    tell_kept();
    return Status();
}

void Runtime::end_protection(Unit& unit, uint64_t times) {
    times = std::min(times, unit.protections);
    if (!times) return;
    unit.protections -= times;
    if (unit.protections) return;
    protected_units_--;
    if (unit.memory == Memory::unordered) unordered_.unpin(unit);
}

Status Runtime::unprotect(std::span<const sh_block> ids) {
    for (const sh_block id : ids)
        if (!registry_.find(id)) return unknown_block(id);
    size_t done = 0;
    Status status;
    for (; done < ids.size(); done++) {
        const Block& block = *registry_.find(ids[done]);
        if (block.detail->protections == 0) {
            status = Status(SH_ERROR_INVALID_STATE, registry_.name_of(block) + " is not protected" + (done ? " as often as that" : ""));
            break;
        }
        block.detail->protections--;
    }
    if (!status.ok()) {
        while (done-- > 0) registry_.find(ids[done])->detail->protections++;
        return status;
    }
    for (const sh_block id : ids) end_protection(registry_.unit(registry_.find(id)->unit), 1);
    tell_kept();
    return Status();
}

void Runtime::keep_begin() {
    if (registry_.block_count() == 0) log_line(SH_LOG_WARNING, "%s is to be kept resident, and has no blocks", tenant_name().c_str());
    if (kept_scopes_++ == 0) begin_span(telemetry::Residency::kept);
    tell_kept();
}

void Runtime::keep_end() {
    if (--kept_scopes_ == 0) end_span(telemetry::Residency::kept, placement_.pages() * device_->page_bytes());
    tell_kept();
}

void Runtime::begin_span(telemetry::Residency how) {
    uint64_t& since = residency_since_ns_[static_cast<size_t>(how)];
    if (!since) since = std::max<uint64_t>(1, device_->backend().now_ns());
}

void Runtime::end_span(telemetry::Residency how, uint64_t bytes) {
    const uint64_t since = std::exchange(residency_since_ns_[static_cast<size_t>(how)], 0);
    if (since && telemetry::trace_on()) telemetry::trace_residency(gate_.name().c_str(), how, since, device_->backend().now_ns(), bytes);
}

Status Runtime::reserve(uint64_t bytes, policy::Priority priority, Lock& lock) {
    SH_TRY(usable());
    uint64_t pages = bytes / device_->page_bytes() + (bytes % device_->page_bytes() != 0);
    if (!bytes) {
        if (!planned_ && !order_.known())
            return Status(SH_ERROR_INVALID_STATE, tenant_name() + ": how much it uses is not known: set a schedule, run a step, or say how many bytes");
        if (!planned_) SH_TRY(replan(lock, true));
        pages = plan_.resident_pages + plan_.ring_pages + plan_.unordered_pages;
    }
    pages = std::min(pages, max_pages_);   // it never takes more: the rest would be lost to all
    SH_TRY(without_mutex(lock, [&] {
        device_->notice_free_memory(true);
        Status status = device_->arbiter().reserve(*this, pages, priority);
        if (status.ok()) device_->arbiter().make_room(*this);
        return status;
    }));
    begin_span(telemetry::Residency::reserved);
    return Status();
}

void Runtime::release_reservation() {
    end_span(telemetry::Residency::reserved, device_->arbiter().standing(*this).reserved * device_->page_bytes());
    device_->arbiter().release_reservation(*this);
}

Status Runtime::guest_begin(const sh_guest_options& options, Lock& lock) {
    SH_TRY(usable());
    SH_TRY(only_outside_capture());
    if (gate_.in_step()) return Status(SH_ERROR_BUSY, tenant_name() + " is in a step");
    if (gate_.views()) return Status(SH_ERROR_BUSY, tenant_name() + ": views are held");
    const uint64_t page = device_->page_bytes();
    const auto pages_of = [&](uint64_t bytes) { return bytes / page + (bytes % page != 0); };
    uint32_t asks = kNone;
    const Needs needs = planner_.needs(order_, limits(), &asks);
    GuestTerms terms;
    terms.least_pages = needs.least_pages;
    terms.pages = std::min(options.bytes ? pages_of(options.bytes) : needs.wanted_pages, std::max(max_pages_, needs.least_pages));
    terms.asked_pages = options.bytes ? terms.pages : 0;
    terms.workspace_pages = pages_of(options.workspace_bytes);
    terms.shrink = options.flags & SH_GUEST_SHRINK;
    if (terms.pages < terms.least_pages)
        return Status(SH_ERROR_BUDGET, tenant_name() + " cannot run as a guest with " + exact_size_text(options.bytes ? options.bytes : terms.pages * page) +
                                           ": the smallest that works is " + exact_size_text(terms.least_pages * page));
    SH_TRY(without_mutex(lock, [&] {
        device_->notice_free_memory(true);
        Status status = device_->arbiter().begin_guest(*this, terms);
        if (!status.ok()) return status;
        device_->limit_pool();
        device_->arbiter().make_room(*this);
        return status;
    }));
    const bool was_leaving = std::exchange(leaving_, false);
    // What it holds beyond its terms is no longer its own; if it cannot give that up now, then when its step begins.
    if (planned_ && !gate_.closing() && !gate_.in_step() && gate_.views() == 0 && !plan_is_held()) (void)replan(lock, false).ok();
    if (const Status status = options.wait_ns ? wait_for_room(options.wait_ns, lock) : Status(); !status.ok()) {
        if (device_->arbiter().end_guest(*this)) leaving_ = was_leaving;
        device_->limit_pool();
        return status;
    }
    begin_span(telemetry::Residency::guest);
    return Status();
}

// Until others have given up what it was promised.
Status Runtime::wait_for_room(uint64_t wait_ns, Lock& lock) {
    Patience patience(wait_ns);
    for (;;) {
        Status room;
        SH_TRY(without_mutex(lock, [&] {
            device_->notice_free_memory(true);
            device_->arbiter().make_room(*this);
            room = device_->arbiter().check_room(*this);
            return Status();
        }));
        SH_TRY(usable());
        if (room.ok()) return room;
        if (patience.is_over()) return room.within(tenant_name() + " is not let in as a guest, wait_ns has passed");
        const Gate::Inside inside(gate_);
        patience.pause(gate_.changed(), lock, [&] { return gate_.closing(); });
    }
}

Status Runtime::guest_end(Lock& lock) {
    const uint64_t bytes = device_->arbiter().standing(*this).guest * device_->page_bytes();
    if (!device_->arbiter().end_guest(*this)) return Status();
    end_span(telemetry::Residency::guest, bytes);
    device_->limit_pool();
    leaving_ = true;
    return leave_if_due(lock);
}

Status Runtime::leave_if_due(Lock& lock) {
    if (!leaving_ || gate_.in_step() || gate_.views() || capture_ || plan_is_held() || gate_.lost()) return Status();
    SH_TRY(shrink_to(0, lock));
    // Somebody may have come in between, or others have what it needs beside its reservation: then at its next edge.
    const Arbiter::Standing standing = device_->arbiter().standing(*this);
    leaving_ = placement_.pages() > std::max({standing.kept, standing.reserved, plan_.least_pages});
    return Status();
}

// Gives all its memory back; the next step plans anew.
Status Runtime::vacate(Lock& lock) {
    return behind_closed_door(lock, [&] {
        const uint64_t held_before = placement_.pages();
        SH_TRY(note(flush_dirty(lock)));
        SH_TRY(note(quiesce(lock)));
        SH_TRY(note(unordered_.resize(0, lock)));
        SH_TRY(note(placement_.clear()));
        stats_.given_up_bytes += held_before * device_->page_bytes();
        plan_ = {};
        planned_ = false;
        replan_wanted_ = true;
        device_->arbiter().withdraw(*this);
        telemetry::trace_memory(gate_.name().c_str(), device_->backend().now_ns(), 0);
        return device_->pool().trim(0);
    });
}

// Holds no more than this, or than what is protected and reserved, until it is used again.
Status Runtime::shrink_to(uint64_t pages, Lock& lock) {
    const auto certain = [&] {
        const Arbiter::Standing standing = device_->arbiter().standing(*this);
        return std::max(standing.kept, standing.reserved);
    };
    uint64_t target = std::max(pages, certain());
    if (device_->arbiter().standing(*this).granted <= target) return Status();
    // Without a plan it holds what one that failed has left.
    if ((!planned_ || target < plan_.least_pages) && certain() == 0) {
        // From here on it has agreed to hold nothing: who reserves for it after this finds it without memory.
        uint64_t none = 0;
        SH_TRY(device_->arbiter().request(*this, Needs(), false, &none));
        if (certain() == 0) return vacate(lock);
        target = std::max(pages, certain());
    }
    if (!planned_) return Status();
    trimmed_to_ = std::max(target, plan_.least_pages);
    // It may not be able to do with less now.
    if (Status status = replan(lock, false); status.code() != SH_ERROR_BUDGET && status.code() != SH_ERROR_BUSY) SH_TRY(status);
    return device_->pool().trim(0);
}

Status Runtime::trim(uint64_t keep_bytes, uint64_t* out_bytes, Lock& lock) {
    SH_TRY(usable());
    SH_TRY(only_outside_capture());
    if (gate_.in_step()) return Status(SH_ERROR_BUSY, tenant_name() + " is in a step");
    if (gate_.views()) return Status(SH_ERROR_BUSY, tenant_name() + ": views are held");
    if (plan_is_held()) SH_TRY(held_by_graphs());
    SH_TRY(shrink_to(keep_bytes / device_->page_bytes(), lock));
    if (out_bytes) *out_bytes = placement_.pages() * device_->page_bytes();
    return Status();
}

void Runtime::feel_pressure(uint64_t pages) {
    std::lock_guard lock(pressure_mutex_);
    if (pressure_) pressure_(pressure_handle_, pages * device_->page_bytes(), pressure_data_);
}

Status Runtime::set_pressure(sh_runtime* handle, sh_pressure_fn pressure, void* user_data, Lock& lock) {
    return without_mutex(lock, [&] {
        std::lock_guard calling(pressure_mutex_);
        pressure_ = pressure;
        pressure_data_ = user_data;
        pressure_handle_ = handle;
        return Status();
    });
}

}  // namespace stagehand::core
