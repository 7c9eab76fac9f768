#include "policy/recurrence.h"

#include <algorithm>
#include <cmath>

namespace stagehand::policy {

StepClock::StepClock(std::span<const Use> trace) : trace_(trace), ends_(2 * trace.size() + 1) {}

void StepClock::restart() {
    std::fill(ends_.begin(), ends_.end(), 0.0);
    copied_ = before_ = 0;
    remembering_ = false;
    age_ = 0;
    renew_at_ = 1;
}

void StepClock::step(const StepProgramme& programme, UseTimes* times) {
    const size_t uses = trace_.size();
    before_ = end();
    std::copy(ends_.begin() + static_cast<std::ptrdiff_t>(uses), ends_.end(), ends_.begin());
    // Entry uses + 1 + j is the end of use j of this step; fences reach back at most one step.
    double* ends = ends_.data() + uses + 1;
    double copied = copied_;
    double computed = before_;
    for (size_t j = 0; j < uses; j++) {
        uint32_t begin = programme.first_copy[j];
        uint32_t end = programme.first_copy[j + 1];
        double first_start = 0;
        for (uint32_t k = begin; k < end; k++) {
            const Copy& copy = programme.copies[k];
            if (copy.fence_back) copied = std::max(copied, ends[static_cast<std::ptrdiff_t>(j) - copy.fence_back]);
            if (k == begin) first_start = copied;
            copied += copy.ns;
        }
        if (begin != end) computed = std::max(computed, copied);
        if (times) {
            UseTimes& t = times[j];
            t.copies = end - begin;
            t.compute_start = computed;
            t.load_start = begin == end ? computed : first_start;
            t.load_end = begin == end ? computed : copied;
        }
        computed += static_cast<double>(trace_[j].compute_ns);
        if (times) times[j].compute_end = computed;
        ends[j] = computed;
    }
    copied_ = copied;
}

bool StepClock::repeats() {
    const size_t uses = trace_.size();
    const double* ends = ends_.data() + uses + 1;
    const double now = end();
    if (!remembering_) {
        remember();
        return uses == 0;
    }
    age_++;
    // The recurrence only adds and takes maxima, so equal times up to a shift mean an equal future.
    double tolerance = 1e-10 * std::max(now - before_, 1.0);
    double shift = now - remembered_end_;
    bool nothing_copied = copied_ == remembered_copied_;
    bool same = nothing_copied || std::fabs(copied_ - remembered_copied_ - shift) <= tolerance;
    for (size_t j = uses; same && j-- > 0;) same = std::fabs(ends[j] - remembered_[j] - shift) <= tolerance;
    if (same) return true;
    if (age_ == renew_at_) {
        earlier_period_ = period_ns();
        remember();
        renew_at_ *= 2;
    }
    return false;
}

void StepClock::remember() {
    const double* ends = ends_.data() + trace_.size() + 1;
    remembered_.assign(ends, ends + trace_.size());
    remembered_end_ = end();
    remembered_copied_ = copied_;
    remembering_ = true;
    age_ = 0;
}

double StepClock::period_ns() const {
    if (age_) return (end() - remembered_end_) / age_;
    return renew_at_ > 1 ? earlier_period_ : last_step_ns();
}

namespace {

bool covers_the_units(const Shape& shape, const Plan& plan) {
    if (plan.units.size() != shape.pages.size()) return false;
    for (size_t u = 0; u < plan.units.size(); u++) {
        const UnitPlan& unit = plan.units[u];
        if (uint64_t{unit.resident_pages} + unit.streamed_pages != shape.pages[u]) return false;
        if (unit.streamed_pages > plan.ring_pages) return false;
        if (unit.streamed_pages && unit.ring_offset >= plan.ring_pages) return false;
    }
    return true;
}

}  // namespace

std::optional<Simulation> simulate(const Problem& problem, const Plan& plan, uint32_t steps) {
    if (!well_formed(problem)) return std::nullopt;
    Shape shape(problem);
    if (!covers_the_units(shape, plan)) return std::nullopt;
    StepProgramme cold, steady;
    if (!ProgrammeTracer(shape).trace(plan.units, plan.ring_pages, steady, &cold)) return std::nullopt;

    Simulation result;
    result.bytes_per_step = steady.bytes;
    result.last_step.resize(problem.trace.size());
    StepClock clock(problem.trace);
    clock.step(cold, result.last_step.data());
    for (result.steps = 1; result.steps < std::max(2u, steps) && !result.periodic;) {
        clock.step(steady, result.last_step.data());
        result.steps++;
        result.periodic = clock.repeats();
    }
    result.step_ns = clock.period_ns();
    result.stall_ns = std::max(0.0, result.step_ns - shape.compute_ns);
    return result;
}

}  // namespace stagehand::policy
