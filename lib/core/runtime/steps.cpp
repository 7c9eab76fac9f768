#include "core/runtime/steps.h"

#include <algorithm>

#include "base/no_throw.h"

namespace stagehand::core {

Status Steps::set_schedule(std::span<const sh_use> uses) {
    SH_TRY(parts_.gate.usable());
    std::vector<Order::Entry> entries;
    for (size_t i = 0; i < uses.size(); i++) {
        if (uses[i].reserved)
            return Status(SH_ERROR_INVALID_ARGUMENT, "use " + std::to_string(i) + ": reserved is not 0");
        const Block* block = parts_.registry.find(uses[i].block);
        if (!block) return parts_.unknown_block(uses[i].block);
        if (parts_.registry.unit(block->unit).unordered)
            return Status(SH_ERROR_INVALID_ARGUMENT, "use " + std::to_string(i) + ": " +
                                                         parts_.registry.name_of(*block) +
                                                         " is SH_BLOCK_UNORDERED and cannot be scheduled");
        // Consecutive uses of blocks of one unit are one use of the unit.
        if (entries.empty() || entries.back().unit != block->unit) entries.push_back({block->unit, 0, 0});
        entries.back().compute_ns += uses[i].compute_ns;
        entries.back().uses++;
    }
    const bool same = entries.size() == parts_.order.followed().size() && parts_.order.given() &&
                      std::equal(entries.begin(), entries.end(), parts_.order.followed().entries().begin(),
                                 [](const auto& a, const auto& b) {
                                     return a.unit == b.unit && a.uses == b.uses && a.compute_ns == b.compute_ns;
                                 });
    if (same) return Status();
    const bool given = !entries.empty();
    plan_.watch().trust_times(std::ranges::any_of(entries, [](const auto& entry) { return entry.compute_ns > 0; }));
    parts_.order.set(std::move(entries), parts_.registry.units().size(), given);
    plan_.forget_kinds();
    if (given) parts_.record.end();  // the record of the step under way does not overrule it
    parts_.prefetcher.renew();
    plan_.want();
    return Status();
}

Status Steps::begin(const char* kind_name, Lock& lock) {
    SH_TRY(parts_.gate.running());
    SH_TRY(graphs_.drop_if_wanted(lock));
    SH_TRY(captures_.only_outside());
    if (parts_.gate.in_step())
        return Status(SH_ERROR_INVALID_STATE,
                      parts_.gate.title() + " cannot begin a step: a step is under way already, until sh_step_end()");
    SH_TRY(parts_.take_failure());
    plan_.use_all();
    count_.announce();
    if (parts_.gate.views() == 0 && !graphs_.hold_the_plan()) plan_.look_at_times();
    if (plan_.is_due() && parts_.gate.views() == 0 && !graphs_.hold_the_plan()) {
        SH_TRY(plan_.change(lock, true));
        SH_TRY(parts_.gate.running());
        SH_TRY(captures_.only_outside());  // again, because the mutex was given up
    }
    uint32_t kind = kNone;
    if (kind_name) SH_TRY(plan_.watch().kinds().find(kind_name, &kind));
    plan_.watch().kinds().begin(kind, parts_.order);  // may lack memory: nothing has begun yet
    parts_.gate.step_begins();
    follow(plan_.watch().kinds().order_of_this(parts_.order));
    plan_.watch().step_begins(plan_.result());
    span_ = count_.begin();
    parts_.order.to_edge();
    if (!parts_.ring.size()) parts_.loader.settle_all();  // so that later steps need not look at finished loads again
    access_.look_ahead(span_.began_ns);
    return Status();
}

// Follows the order of another kind of step from its beginning on.
void Steps::follow(uint32_t order) noexcept {
    if (parts_.order.follow(order)) parts_.prefetcher.renew();
}

// Takes over the order of the step that has ended, if it is that of another kind.
void Steps::learn() {
    const auto learned = plan_.watch().kinds().learn(parts_.order, parts_.record, parts_.registry.units().size());
    if (learned == Kinds::Learned::nothing) return;
    plan_.watch().trust_times(false);
    parts_.prefetcher.renew();
    plan_.want();
}

Status Steps::end() {
    if (!parts_.gate.in_step())
        return Status(SH_ERROR_INVALID_STATE,
                      parts_.gate.title() + " cannot end a step: none is under way. sh_step_begin() begins one");
    parts_.gate.step_ends();
    parts_.changes.step_ends();
    count_.end(&span_);
    Status status = no_throw([&] { return parts_.streams.record_all(); });
    if (parts_.record.under_way()) {
        parts_.record.end();
        (void)no_throw([&] {  // after a failure, another step teaches the order
            learn();
            return Status();
        })
            .ok();
    }
    plan_.watch().step_ends();
    follow(plan_.watch().kinds().order_of_next(parts_.order));
    parts_.order.to_edge();
    if (!plan_.is_wanted() || graphs_.hold_the_plan()) access_.look_ahead(span_.ended_ns);
    if (Status told = count_.tell(span_); status.ok()) status = told;
    parts_.loader.look();
    if (status.ok()) status = parts_.late_failure();
    return parts_.gate.note(status);
}

}  // namespace stagehand::core
