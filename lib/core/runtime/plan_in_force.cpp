#include "core/runtime/plan_in_force.h"

#include <algorithm>
#include <functional>
#include <memory>

#include "base/log.h"
#include "base/no_throw.h"
#include "base/size_text.h"
#include "core/runtime/budget_refusal.h"
#include "telemetry/trace.h"

namespace stagehand::core {
namespace {

constexpr int kMemoryAttempts = 3;

}  // namespace

PlanInForce::PlanInForce(Gate& gate, BudgetShare& share, ModelMemory& memory, Movers& movers, StepOrder& step_order,
                         const Protections& protections, const sh_runtime_options& options)
    : gate_(gate),
      share_(share),
      memory_(memory),
      movers_(movers),
      step_order_(step_order),
      planner_(memory.registry),
      plan_memory_(memory, step_order),
      watch_(gate, share, memory, movers, step_order),
      changes_(memory.changes, memory.registry),
      claim_(gate, share, memory, movers, step_order, protections, watch_.speeds(), planner_.plain(), plan_, options) {}

bool PlanInForce::is_due() const {
    return is_wanted() || !exists_ || step_order_.meter.measured() || share_.arbiter().wants_change(share_.tenant);
}

void PlanInForce::look_at_times() {
    look_at_changes();
    if (!exists_ || is_wanted() || !step_order_.order.known()) return;
    bool changed = false;
    const Status status = no_throw([&] {  // after a failure, the next sample tells
        PlanLimits with;
        SH_TRY(claim_.limits(changes_.planned(), &with));
        return watch_.look(planner_, with, plan_, &changed);
    });
    wanted_ = wanted_ || (status.ok() && changed);
}

Status PlanInForce::change(Lock& lock, bool press) {
    // What a resume takes may be more than the share that is left when others have taken theirs.
    if (gate_.occupancy() == SH_OCCUPANCY_RELEASED) return gate_.running();
    return behind_closed_door(lock, [&] { return change_plan_again(lock, press); });
}

Status PlanInForce::change_plan_again(Lock& lock, bool press) {
    Status status = change_plan(lock, press);
    // SH_ERROR_OUT_OF_DEVICE_MEMORY: the budget was lowered meanwhile, so the pages that were granted are not free any
    // more.
    for (int again = 0; again < kMemoryAttempts && status.code() == SH_ERROR_OUT_OF_DEVICE_MEMORY; again++)
        status = change_plan(lock, press);
    return status.code() == SH_ERROR_OUT_OF_DEVICE_MEMORY && exists_ ? Status(SH_ERROR_BUDGET, status.text()) : status;
}

Status PlanInForce::behind_closed_door(Lock& lock, const std::function<Status()>& work) {
    const Gate::Inside inside(gate_);
    if (gate_.changing()) {
        gate_.wait(lock, [&] { return !gate_.changing(); });
        return gate_.usable();
    }
    const Gate::ClosedDoor door(gate_);
    gate_.wait(lock, [&] { return gate_.bringings() == 0; });
    SH_TRY(gate_.usable());
    return gate_.views() == 0 ? work() : Status();
}

Status PlanInForce::vacate(Lock& lock) {
    return behind_closed_door(lock, [&] {
        const uint64_t held_before = plan_memory_.pages();
        SH_TRY(empty(lock));
        gate_.stats().given_up_bytes += held_before * share_.page_bytes();
        plan_ = {};
        exists_ = false;
        share_.arbiter().withdraw(share_.tenant);
        telemetry::trace_memory(gate_.name().c_str(), share_.backend().now_ns(), 0);
        return share_.device->pool().trim(0);
    });
}

// Behind a closed door.
Status PlanInForce::empty(Lock& lock) {
    wanted_ = true;  // so that a failure on the way leaves it set
    SH_TRY(gate_.note(movers_.flush_all(lock)));
    SH_TRY(gate_.note(movers_.quiesce(lock)));
    SH_TRY(gate_.note(movers_.loader.rest()));
    away_.emptied = true;
    return gate_.note(plan_memory_.clear(lock));
}

Status PlanInForce::give_back(Lock& lock) {
    SH_TRY(movers_.quiesce(lock));
    SH_TRY(movers_.loader.rest());
    SH_TRY(plan_memory_.give_back());
    return share_.device->pool().trim(0);
}

// While nothing is under way.
Status PlanInForce::get_loader_ready(bool streams) {
    if (!streams) return movers_.loader.rest();
    movers_.loader.get_ready();
    return Status();
}

// An order that was learned may need more memory than learning it did: held blocks have fixed places, and blocks that
// were not used need memory beside them. Without an order, blocks are loaded one by one as they come.
Status PlanInForce::change_plan(Lock& lock, bool press) {
    step_order_.take_up(memory_.registry.units().size());
    Status status = plan_with_order(lock, press);
    if (status.code() == SH_ERROR_BUDGET && step_order_.order.has_others()) {
        watch_.kinds().refuse_others(step_order_.order);
        step_order_.order.remove_others_if([](uint32_t) { return true; });
        status = plan_with_order(lock, press);
    }
    if (status.code() != SH_ERROR_BUDGET || !step_order_.order.known() || step_order_.order.given()) return status;
    step_order_.set_aside();
    status = plan_with_order(lock, press);
    if (!status.ok()) step_order_.take_up(memory_.registry.units().size());  // the old plan may stay in force
    return status;
}

// SH_ERROR_BUDGET: the planner has found no plan. It is asked again with fewer kinds of step.
Status PlanInForce::plan_with_order(Lock& lock, bool press) {
    const uint64_t began = share_.backend().now_ns();
    if (memory_.registry.has_packed_tensors())
        SH_TRY(share_.device->measure_unpacking(share_.pages_beside(plan_memory_.pages())));
    PlanLimits with;
    // Also before the order is known: later there may be no free page to measure the link with.
    SH_TRY(claim_.limits(changes_.units(), &with));
    const bool measured = step_order_.meter.measured() && step_order_.order.known();
    if (measured) watch_.read_first_times();
    watch_.state_order(plan_, claim_.max_held());
    uint32_t asks = kNone;
    const Needs needs = claim_.needs_with_curve(with, &asks);
    uint64_t share = 0;
    Status status = claim_.ask_for_share(needs, press, &share, lock);
    if (status.code() == SH_ERROR_BUSY) return Status(SH_ERROR_BUSY, gate_.title() + ": " + status.text());
    if (status.code() == SH_ERROR_BUDGET)
        return BudgetRefusal(gate_, share_, memory_, step_order_, with, planner_.plain().outside())
            .of_plan(needs, asks, status);
    SH_TRY(status);
    // Other runtimes did not give up what they hold.
    if (exists_ && !is_wanted() && !measured && share == plan_.share_pages) return Status();
    PlanResult result;
    const uint64_t sources = memory_.registry.source_changes();
    const uint64_t held_before = plan_memory_.pages();
    // The arbiter has granted more by now than the runtime holds. So the arbiter must learn the result, even after an
    // exception.
    status = no_throw([&] { return planner_.make(step_order_.order, with, share, &result); });
    const bool made = status.ok();
    if (made)
        status = no_throw([&] {
            SH_TRY(movers_.flush_all(lock));
            SH_TRY(movers_.quiesce(lock));
            SH_TRY(get_loader_ready(result.bytes_per_step > 0));
            return plan_memory_.apply(result, lock);
        });
    if (exists_ && (!made || status.code() == SH_ERROR_BUDGET)) {  // the old plan stays in force
        wanted_ = wanted_ || measured;                             // the times are in the order, but not yet in a plan
        claim_.settle(std::max({plan_.pages(), plan_memory_.pages(), std::min(share, plan_.share_pages)}));
        return made ? Status(SH_ERROR_OUT_OF_DEVICE_MEMORY, status.text()) : status;
    }
    exists_ = status.ok();
    if (!status.ok()) {
        plan_.resident_pages = plan_.ring_pages = plan_.unordered_pages = 0;
        plan_.unpack = {};
        claim_.settle();
        return gate_.note(status);
    }
    if (share < plan_.share_pages && plan_memory_.pages() < held_before)
        gate_.stats().given_up_bytes += (held_before - plan_memory_.pages()) * share_.page_bytes();
    plan_ = std::move(result);
    sources_planned_ = sources;
    changes_.plan_changed(std::move(with.changing));
    claim_.settle(share);
    wanted_ = claim_.is_trimmed();  // if trimmed, the next step takes its share again
    gate_.stats().plans++;
    step_order_.prefetcher.renew();
    telemetry::trace_plan(gate_.name().c_str(), watch_.reason(), began, share_.backend().now_ns());
    watch_.plan_changed(with.link_bytes_per_ns, share_.backend().now_ns() - began);
    watch_.measure_if_missing();
    telemetry::trace_memory(gate_.name().c_str(), share_.backend().now_ns(),
                            plan_memory_.pages() * share_.page_bytes());
    const auto size = [&](uint64_t pages) { return size_text(pages * share_.page_bytes()); };
    log_line(SH_LOG_INFO, "%s: plan: %s resident, a ring of %s, %s for blocks outside the order", gate_.name().c_str(),
             size(plan_.resident_pages).c_str(), size(plan_.ring_pages).c_str(), size(plan_.unordered_pages).c_str());
    return Status();
}

Status PlanInForce::try_out(const sh_plan_options& options, PlanResult* out) {
    // An order that is set aside may fit these options.
    struct SetAside {
        void operator()(Order* order) const { order->set_aside(); }
    };
    const bool taken = step_order_.order.take_up(memory_.registry.units().size());
    const std::unique_ptr<Order, SetAside> until_end(taken ? &step_order_.order : nullptr);
    if (memory_.registry.has_packed_tensors() && !gate_.is_away())
        SH_TRY(share_.device->measure_unpacking(share_.pages_beside(plan_memory_.pages())));
    PlanLimits with;
    SH_TRY(claim_.limits(changes_.units(), &with));
    if ((options.flags & SH_PLAN_DRY_RUN) && options.link_bytes_per_second) {
        with.link_bytes_per_ns = static_cast<double>(options.link_bytes_per_second) / 1e9;
        with.link_bytes_beside = 0;
    }
    uint32_t asks = kNone;
    const Needs needs = planner_.plain().needs(step_order_.order, with, &asks);
    const uint64_t whole =
        options.budget_bytes ? options.budget_bytes / share_.page_bytes() : share_.arbiter().total_pages();
    const uint64_t share = std::min({whole, needs.wanted_pages, share_.max_pages});
    const uint64_t asked = share == whole && options.budget_bytes ? options.budget_bytes : share * share_.page_bytes();
    if (share < needs.least_pages)
        return BudgetRefusal(gate_, share_, memory_, step_order_, with, planner_.plain().outside())
            .of_trial(asked, needs, asks);
    return planner_.make(step_order_.order, with, share, out);
}

Status PlanInForce::leave(bool keeps_places, Lock& lock) {
    return behind_closed_door(lock, [&] {
        SH_TRY(gate_.unused());  // again, because the door had to be waited for
        plan_memory_.save(keeps_places);
        away_ = {exists_, keeps_places, wanted_, false};
        SH_TRY(empty(lock));
        wanted_ = away_.wanted;  // a plan that is wanted from now on is made after the return
        if (!keeps_places) plan_ = {};
        exists_ = false;
        share_.arbiter().withdraw(share_.tenant);
        gate_.set_occupancy(SH_OCCUPANCY_RELEASED);
        telemetry::trace_memory(gate_.name().c_str(), share_.backend().now_ns(), 0);
        return share_.device->pool().trim(0);
    });
}

Status PlanInForce::come_back(bool keeps_places, Lock& lock) {
    return behind_closed_door(lock, [&] {
        if (!away_.planned) return Status();  // memory comes with the first use, as before
        const bool same = keeps_places && away_.keeps_places;
        if (!same) plan_ = {};
        const Status status = no_throw([&] { return same ? take_places(lock) : change_plan_again(lock, true); });
        if (status.ok()) return claim_.tell_less_kept(), Status();
        share_.arbiter().withdraw(share_.tenant);
        (void)share_.device->pool().trim(0).ok();  // pages that were made and not mapped
        return status.within(gate_.title() + " stays released");
    });
}

Status PlanInForce::repair(Lock& lock) {
    return behind_closed_door(lock, [&] {
        SH_TRY(take_places(lock));
        wanted_ = away_.wanted;
        return Status();
    });
}

Status PlanInForce::take_places(Lock& lock) {
    Needs needs;
    needs.least_pages = plan_.pages();
    needs.wanted_pages = std::max(plan_.pages(), plan_.share_pages);
    uint64_t share = 0;
    SH_TRY(claim_.ask_for_share(needs, true, &share, lock));
    SH_TRY(gate_.note(no_throw([&] {
        SH_TRY(get_loader_ready(plan_.bytes_per_step > 0));
        return plan_memory_.restore(lock);
    })));
    exists_ = true;
    claim_.renew({});
    claim_.settle(share);
    step_order_.prefetcher.renew();
    telemetry::trace_memory(gate_.name().c_str(), share_.backend().now_ns(),
                            plan_memory_.pages() * share_.page_bytes());
    return Status();
}

}  // namespace stagehand::core
