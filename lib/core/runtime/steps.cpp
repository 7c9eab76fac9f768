#include "core/runtime/steps.h"

#include <algorithm>

#include "base/no_throw.h"

namespace stagehand::core {

Status Steps::set_schedule(std::span<const sh_use> uses) {
    SH_TRY(gate_.usable());
    std::vector<Order::Entry> entries;
    for (size_t i = 0; i < uses.size(); i++) {
        if (uses[i].reserved)
            return Status(SH_ERROR_INVALID_ARGUMENT, "use " + std::to_string(i) + ": reserved is not 0");
        const Block* block = memory_.registry.find(uses[i].block);
        if (!block) return gate_.unknown_block(uses[i].block);
        if (memory_.registry.unit(block->unit).unordered)
            return Status(SH_ERROR_INVALID_ARGUMENT, "use " + std::to_string(i) + ": " +
                                                         memory_.registry.name_of(*block) +
                                                         " is SH_BLOCK_UNORDERED and cannot be scheduled");
        // Consecutive uses of blocks of one unit are one use of the unit.
        if (entries.empty() || entries.back().unit != block->unit) entries.push_back({block->unit, 0, 0});
        entries.back().compute_ns += uses[i].compute_ns;
        entries.back().uses++;
    }
    const bool same = entries.size() == step_order_.order.followed().size() && step_order_.order.given() &&
                      std::equal(entries.begin(), entries.end(), step_order_.order.followed().entries().begin(),
                                 [](const auto& a, const auto& b) {
                                     return a.unit == b.unit && a.uses == b.uses && a.compute_ns == b.compute_ns;
                                 });
    if (same) return Status();
    plan_.watch().trust_times(std::ranges::any_of(entries, [](const auto& entry) { return entry.compute_ns > 0; }));
    step_order_.replace(std::move(entries), memory_.registry.units().size());
    plan_.forget_kinds();
    plan_.want();
    return Status();
}

Status Steps::plan(const sh_plan_options& options, PlanResult* out, Lock& lock) {
    SH_TRY(options.flags & SH_PLAN_DRY_RUN ? gate_.usable() : gate_.running());
    if (!step_order_.order.known() && !step_order_.order.is_aside())
        return Status(SH_ERROR_INVALID_STATE,
                      gate_.title() + " cannot plan: no order is known; set a schedule or run a step first");
    const bool drops_graphs = options.flags & SH_PLAN_DROP_GRAPHS, dry = options.flags & SH_PLAN_DRY_RUN;
    if (dry || gate_.in_step()) {
        SH_TRY(plan_.try_out(options, out));
        if (dry) return Status();
        if (drops_graphs && plan_.is_due()) graphs_.want_drop();
        plan_.want();  // the plan changes when the next step begins
        return Status();
    }
    SH_TRY(gate_.at_edge("plan"));
    plan_.use_all();
    plan_.look_at_changes();
    if (plan_.is_due()) {
        if (graphs_.hold_the_plan()) SH_TRY(drops_graphs ? graphs_.drop(lock) : graphs_.held());
        SH_TRY(plan_.change(lock, true));
    }
    *out = plan_.result();
    return Status();
}

Status Steps::begin(const char* kind_name, Lock& lock) {
    SH_TRY(gate_.running());
    SH_TRY(graphs_.drop_if_wanted(lock));
    SH_TRY(gate_.no_capture());
    if (gate_.in_step())
        return Status(SH_ERROR_INVALID_STATE,
                      gate_.title() + " cannot begin a step: a step is under way already, until sh_step_end()");
    SH_TRY(gate_.note(movers_.take_failure()));
    plan_.use_all();
    count_.announce();
    if (gate_.views() == 0 && !graphs_.hold_the_plan()) plan_.look_at_times();
    if (plan_.is_due() && gate_.views() == 0 && !graphs_.hold_the_plan()) {
        SH_TRY(plan_.change(lock, true));
        SH_TRY(gate_.running());
        SH_TRY(gate_.no_capture());  // again, because the mutex was given up
    }
    uint32_t kind = kNone;
    if (kind_name) SH_TRY(plan_.watch().kinds().find(kind_name, &kind));
    plan_.watch().kinds().begin(kind, step_order_.order);  // may lack memory: nothing has begun yet
    gate_.step_begins();
    step_order_.follow(plan_.watch().kinds().order_of_this(step_order_.order));
    plan_.watch().step_begins(plan_.result());
    span_ = count_.begin();
    step_order_.order.to_edge();
    if (!memory_.ring.size()) movers_.loader.settle_all();  // so that later steps need not look at finished loads again
    access_.look_ahead(span_.began_ns);
    return Status();
}

void Steps::learn() {
    if (!step_order_.learn(plan_.watch().kinds(), memory_.registry.units().size())) return;
    plan_.watch().trust_times(false);
    plan_.want();
}

Status Steps::end() {
    if (!gate_.in_step())
        return Status(SH_ERROR_INVALID_STATE,
                      gate_.title() + " cannot end a step: none is under way. sh_step_begin() begins one");
    gate_.step_ends();
    memory_.changes.step_ends();
    count_.end(&span_);
    Status status = no_throw([&] { return memory_.streams.record_all(); });
    if (step_order_.record.under_way()) {
        step_order_.record.end();
        (void)no_throw([&] {  // after a failure, another step teaches the order
            learn();
            return Status();
        })
            .ok();
    }
    plan_.watch().step_ends();
    step_order_.follow(plan_.watch().kinds().order_of_next(step_order_.order));
    step_order_.order.to_edge();
    if (!plan_.is_wanted() || graphs_.hold_the_plan()) access_.look_ahead(span_.ended_ns);
    if (Status told = count_.tell(span_); status.ok()) status = told;
    movers_.loader.look();
    if (status.ok()) status = movers_.take_failure();
    return gate_.note(status);
}

}  // namespace stagehand::core
