#include "core/runtime/budget_claim.h"

#include <algorithm>

#include "base/no_throw.h"
#include "base/unlocked.h"
#include "core/runtime/patience.h"

namespace stagehand::core {

BudgetClaim::BudgetClaim(Gate& gate, BudgetShare& share, ModelMemory& memory, Movers& movers, StepOrder& step_order,
                         const Protections& protections, const SpeedWatch& speeds, Planner& planner,
                         const PlanResult& plan, const sh_runtime_options& options)
    : gate_(gate),
      share_(share),
      memory_(memory),
      movers_(movers),
      step_order_(step_order),
      protections_(protections),
      speeds_(speeds),
      planner_(planner),
      plan_(plan),
      max_held_(std::max(1u, options.max_held)),
      unordered_pages_(options.unordered_bytes / share.page_bytes() +
                       (options.unordered_bytes % share.page_bytes() != 0)),
      share_wait_ns_(options.share_wait_ns) {}

Needs BudgetClaim::needs() {
    uint32_t asks = kNone;
    return planner_.needs(step_order_.order, limits(), &asks);
}

Needs BudgetClaim::needs_with_curve(const PlanLimits& limits, uint32_t* out_unit) {
    Needs needs = planner_.needs(step_order_.order, limits, out_unit);
    needs.curve = planner_.curve(step_order_.order, limits, needs);
    needs.wanted_pages = std::max(needs.least_pages, std::min({needs.wanted_pages, share_.max_pages, trimmed_to_}));
    return needs;
}

PlanLimits BudgetClaim::limits() const {
    PlanLimits limits;
    limits.max_held = max_held_;
    limits.unordered_pages = unordered_pages_;
    limits.unordered_held_pages = step_order_.unordered.held_peak();
    limits.unordered_now = step_order_.unordered.capacity();
    limits.keep_all = protections_.all();
    limits.link_bytes_beside = movers_.loader.speed_beside();
    if (memory_.registry.has_packed_tensors()) {
        limits.unpack_ns_per_byte = share_.device->unpack_ns_per_byte();
        limits.unpack_batch_bytes = memory_.unpack_memory.batch_bytes(share_.arbiter().total_pages());
    }
    limits.copy_latency_ns = share_.backend().info().copy_latency_ns;
    return limits;
}

Status BudgetClaim::limits(std::vector<bool> changing, PlanLimits* out) const {
    *out = limits();
    out->changing = std::move(changing);
    return speeds_.link(&out->link_bytes_per_ns);
}

// What the arbiter has to know of the plan. If host memory is too short to compute it, the number of protected pages
// stays as it was, and the arbiter does not learn what this runtime could give up.
Holding BudgetClaim::holding() noexcept {
    Holding holding;
    holding.pages = std::max(plan_.pages(), memory_.placement.pages());
    holding.kept_pages = share_.standing().kept;
    (void)no_throw([&] {
        holding.kept_pages = kept_pages();
        holding.parts = parts_to_give_up();
        return Status();
    }).ok();
    return holding;
}

std::vector<policy::Part> BudgetClaim::parts_to_give_up() const {
    std::vector<policy::Part> parts;
    if (protections_.all() || !step_order_.order.known()) return parts;
    std::vector<bool> seen(memory_.registry.units().size());
    const double a_use_ns = plan_.step_ns / static_cast<double>(step_order_.order.followed().size());
    for (uint64_t j = 0; j < step_order_.order.followed().size(); j++) {
        const uint32_t index = step_order_.order.followed().entries()[j].unit;
        const Unit& unit = memory_.registry.unit(index);
        if (seen[index] || unit.protections || unit.memory != Memory::planned || unit.own.empty()) continue;
        seen[index] = true;
        parts.push_back({static_cast<uint64_t>(a_use_ns * static_cast<double>(j)), unit.own.size()});
    }
    if (plan_.unordered_pages) parts.push_back({static_cast<uint64_t>(plan_.step_ns), plan_.unordered_pages});
    return parts;
}

// The protected pages among those that the runtime holds now: all pages in a scope, else the pages of protected blocks
// and those that the runtime needs to run beside them.
uint64_t BudgetClaim::kept_pages() {
    if (!protections_.any()) return 0;
    if (gate_.is_away() && !memory_.placement.pages()) return 0;  // others may have the memory meanwhile
    const uint64_t all = std::max(memory_.placement.pages(), plan_.pages());
    if (protections_.all()) return all;
    const uint64_t own = protections_.own_pages();
    return own ? std::min(all, std::max(own + plan_.least_pages, planner_.pages_with_kept(step_order_.order, limits())))
               : 0;
}

void BudgetClaim::tell_kept() { share_.arbiter().keep(share_.tenant, kept_pages()); }

void BudgetClaim::tell_less_kept() noexcept {
    (void)no_throw([&] { return tell_kept(), Status(); }).ok();
}

// No event tells when a step of another runtime has ended. So this call asks again, at growing intervals.
Status BudgetClaim::ask_for_share(const Needs& needs, bool press, uint64_t* out_pages, Lock& lock) {
    if (needs.least_pages > share_.max_pages) return Status(SH_ERROR_BUDGET);
    Patience patience(press ? share_wait_ns_ : 0);
    for (;;) {
        // Without the mutex: other runtimes may be asked to give memory back, and each of them needs its own mutex for
        // that.
        const Status status = unlocked(lock, [&] {
            share_.device->notice_free_memory(true);
            return share_.device->retry_after_loans(
                [&] { return share_.arbiter().request(share_.tenant, needs, press, out_pages); });
        });
        SH_TRY(gate_.usable());
        if (status.code() != SH_ERROR_BUSY || patience.is_over()) return status;
        patience.pause(gate_.changed(), lock, [&] { return gate_.closing(); });
    }
}

void BudgetClaim::settle(std::optional<uint64_t> pages) {
    Holding held = holding();
    if (pages) held.pages = *pages;
    share_.arbiter().settle(share_.tenant, std::move(held));
}

void BudgetClaim::renew(std::vector<bool> changing) noexcept {
    (void)no_throw([&] {
        PlanLimits with;
        SH_TRY(limits(std::move(changing), &with));
        uint64_t share = 0;
        uint32_t asks = kNone;
        return share_.arbiter().request(share_.tenant, needs_with_curve(with, &asks), false, &share);
    }).ok();
}

}  // namespace stagehand::core
