#include "policy/programme.h"

#include <algorithm>

namespace stagehand::policy {

bool ProgrammeTracer::trace(std::span<const UnitPlan> units, uint32_t ring_pages, StepProgramme& steady,
                            StepProgramme* cold) {
    owners_.reset(ring_pages);
    std::fill(last_use_.begin(), last_use_.end(), 0);
    if (cold) {
        if (!trace_step(units, 0, *cold)) return false;
    } else {
        note_owners(units, ring_pages);
    }
    return trace_step(units, shape_->uses(), steady);
}

// Goes backwards, because the last unit on a page owns it. Stops when no page without an owner is left.
void ProgrammeTracer::note_owners(std::span<const UnitPlan> units, uint32_t ring_pages) {
    std::span<const Use> trace = shape_->problem->trace;
    uint32_t left = ring_pages;
    for (uint32_t j = shape_->uses(); j-- > 0;) {
        const uint32_t unit = trace[j].unit;
        const UnitPlan& plan = units[unit];
        if (last_use_[unit]) continue;
        last_use_[unit] = uint64_t{j} + 1;
        if (plan.streamed_pages == 0 || left == 0) continue;
        runs_.clear();
        owners_.visit(plan.ring_offset, plan.streamed_pages, [&](uint32_t first, uint32_t count, uint32_t owner) {
            if (owner == RingOwners::nobody) runs_.push_back({first, count, 0});
        });
        for (const PageRun& run : runs_) {
            owners_.take((uint64_t{plan.ring_offset} + run.first) % ring_pages, run.pages, unit);
            left -= run.pages;
        }
    }
}

bool ProgrammeTracer::trace_step(std::span<const UnitPlan> units, uint64_t uses_before, StepProgramme& step) {
    step.first_copy.clear();
    step.copies.clear();
    step.bytes = 0;
    uint64_t use = uses_before;
    for (const Use& u : shape_->problem->trace) {
        step.first_copy.push_back(static_cast<uint32_t>(step.copies.size()));
        use++;
        const UnitPlan& plan = units[u.unit];
        if (plan.streamed_pages && !load(u.unit, plan, use, step)) return false;
        last_use_[u.unit] = use;
    }
    step.first_copy.push_back(static_cast<uint32_t>(step.copies.size()));
    list_write_backs(units, step);
    return true;
}

// A unit is written back after its last use in the step, and released when the uses have ended that are held along with
// that one.
void ProgrammeTracer::list_write_backs(std::span<const UnitPlan> units, StepProgramme& step) {
    step.back_ns.clear();
    if (!shape_->changes) return;
    const std::span<const Use> trace = shape_->problem->trace;
    const size_t uses = trace.size(), later = (shape_->held - 1) % uses;
    step.back_ns.assign(uses, 0);
    written_.assign(units.size(), false);
    for (size_t use = uses; use-- > 0;) {
        const uint32_t unit = trace[use].unit;
        const UnitPlan& plan = units[unit];
        if (written_[unit] || !shape_->problem->units[unit].changes || !plan.streamed_pages) continue;
        written_[unit] = true;
        step.back_ns[(use + later) % uses] =
            shape_->back_ns(shape_->link_bytes_of_pages(unit, plan.resident_pages, plan.streamed_pages));
    }
}

bool ProgrammeTracer::load(uint32_t unit, const UnitPlan& plan, uint64_t use, StepProgramme& step) {
    const bool whole = shape_->problem->units[unit].whole;
    bool missing = false;
    runs_.clear();
    owners_.visit(plan.ring_offset, plan.streamed_pages, [&](uint32_t first, uint32_t count, uint32_t owner) {
        if (owner != unit) missing = true;
        if (owner == unit && !whole) return;
        // The pages are free when all uses have ended that are held along with the owner's last use.
        bool used = owner != RingOwners::nobody && last_use_[owner] != 0;
        runs_.push_back({first, count, used ? last_use_[owner] + shape_->held - 1 : 0});
    });
    if (!missing) return true;
    owners_.take(plan.ring_offset, plan.streamed_pages, unit);
    cut_load(runs_);
    for (const PageRun& run : runs_) {
        if (run.fence >= use) return false;
        uint64_t bytes = shape_->link_bytes_of_pages(unit, plan.resident_pages + run.first, run.pages);
        step.bytes += bytes;
        step.copies.push_back({shape_->copy_ns(unit, bytes), run.fence ? static_cast<uint32_t>(use - run.fence) : 0});
    }
    return true;
}

}  // namespace stagehand::policy
