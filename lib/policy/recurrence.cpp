#include "policy/recurrence.h"

#include <algorithm>
#include <cmath>

namespace stagehand::policy {

StepClock::StepClock(std::span<const Use> trace) : trace_(trace), ends_(2 * trace.size() + 1), free_(ends_.size()) {}

void StepClock::restart() {
    std::ranges::fill(ends_, 0.0);
    std::ranges::fill(free_, 0.0);
    copied_ = copied_before_ = returned_ = returned_before_ = before_ = mark_ = 0;
    repeats_ = false;
    asked_ = marked_ = 0;
}

void StepClock::step(const StepProgramme& programme, UseTimes* times) {
    const size_t uses = trace_.size();
    before_ = end();
    copied_before_ = copied_;
    returned_before_ = returned_;
    std::copy(ends_.begin() + static_cast<std::ptrdiff_t>(uses), ends_.end(), ends_.begin());
    std::copy(free_.begin() + static_cast<std::ptrdiff_t>(uses), free_.end(), free_.begin());
    // Entry uses + 1 + j is that of use j of this step. Fences reach back at most one step.
    double *ends = ends_.data() + uses + 1, *free = free_.data() + uses + 1;
    double copied = copied_;
    double returned = returned_;
    double computed = before_;
    for (size_t j = 0; j < uses; j++) {
        uint32_t begin = programme.first_copy[j];
        uint32_t end = programme.first_copy[j + 1];
        double first_start = 0;
        for (uint32_t k = begin; k < end; k++) {
            const Copy& copy = programme.copies[k];
            if (copy.fence_back) copied = std::max(copied, free[static_cast<std::ptrdiff_t>(j) - copy.fence_back]);
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
        if (!programme.back_ns.empty() && programme.back_ns[j] > 0)
            returned = std::max(returned, computed) + programme.back_ns[j];
        free[j] = std::max(computed, returned);
    }
    copied_ = copied;
    returned_ = returned;
}

bool StepClock::repeats() {
    const size_t uses = trace_.size();
    const double* ends = ends_.data() + 1;
    const double shift = end() - before_;
    const double tolerance = 1e-10 * std::max(shift, 1.0);
    // The recurrence only adds and takes maxima, so times that are equal up to a shift have an equal future. A step
    // without copies does not change copied_, and one without write-backs does not change returned_.
    const auto shifts = [&](double now, double then) {
        return now == then || std::fabs(now - then - shift) <= tolerance;
    };
    repeats_ = shifts(copied_, copied_before_) && shifts(returned_, returned_before_);
    for (size_t j = uses; repeats_ && j-- > 0;) repeats_ = std::fabs(ends[uses + j] - ends[j] - shift) <= tolerance;
    asked_++;
    if ((asked_ & (asked_ - 1)) == 0 && !repeats_) {
        mark_ = before_;
        marked_ = asked_ - 1;
    }
    return repeats_;
}

double StepClock::period_ns() const {
    return repeats_ || asked_ == marked_ ? last_step_ns() : (end() - mark_) / (asked_ - marked_);
}

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
