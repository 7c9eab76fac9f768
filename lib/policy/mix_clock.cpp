#include "policy/mix_clock.h"

#include <algorithm>
#include <cmath>

namespace stagehand::policy {

namespace {

constexpr uint32_t most_rounds = 6;
// The steps of a visit that are simulated. The others take as long as the last ones.
constexpr uint32_t most_steps = 8;
constexpr double equal_times = 1e-9;

}  // namespace

bool has_one_order(const Mix& mix) {
    const auto same = [](const Use& a, const Use& b) { return a.unit == b.unit; };
    return std::ranges::all_of(mix.traces, [&](const std::vector<Use>& trace) {
        return std::equal(trace.begin(), trace.end(), mix.traces[0].begin(), mix.traces[0].end(), same);
    });
}

MixClock::MixClock(const Shape& shape, const Mix& mix)
    : mix_(mix),
      one_order_(has_one_order(mix)),
      tracer_(shape),
      first_(one_order_ ? 1 : mix.cycle.size()),
      later_(one_order_ ? 0 : mix.cycle.size()),
      kind_steps_(mix.traces.size()),
      kind_ns_(mix.traces.size()) {
    if (shape.held > 1 && !(one_order_ && mix.others.empty())) base_ = shape.problem->trace;
    for (const Visit& visit : mix.cycle) {
        kind_steps_[visit.kind] += visit.steps;
        steps_ += visit.steps;
        uses_ += mix.traces[visit.kind].size() * std::min(visit.steps, 2u);
    }
    for (const std::vector<Use>& other : mix.others) uses_ += base_.empty() ? 0 : 2 * other.size();
}

bool MixClock::run(std::span<const UnitPlan> units, uint32_t ring_pages) {
    if (!trace(units, ring_pages)) return false;
    free_.clear();
    copied_ = returned_ = now_ = cycle_ns_ = 0;
    for (uint32_t round = 0; round < most_rounds; round++) {
        std::ranges::fill(kind_ns_, 0.0);
        const double began = now_, before = cycle_ns_;
        for (size_t number = 0; number < mix_.cycle.size(); number++) visit(number);
        cycle_ns_ = now_ - began;
        if (round && std::fabs(cycle_ns_ - before) <= equal_times * cycle_ns_) break;
    }
    return true;
}

bool MixClock::trace(std::span<const UnitPlan> units, uint32_t ring_pages) {
    bytes_ = 0;
    if (!base_.empty()) {
        tracer_.begin(ring_pages);
        if (!tracer_.follow(units, base_, first_[0])) return false;
    }
    tracer_.begin(ring_pages);
    if (one_order_) {
        if (!tracer_.follow(units, mix_.traces[0], first_[0])) return false;
        if (!tracer_.follow(units, mix_.traces[0], first_[0])) return false;
        bytes_ = steps_ * first_[0].bytes;
        return true;
    }
    // The first round begins with an empty ring, so that only the second one counts.
    if (!trace_visits(units)) return false;
    bytes_ = 0;
    return trace_visits(units);
}

bool MixClock::trace_visits(std::span<const UnitPlan> units) {
    for (size_t number = 0; number < mix_.cycle.size(); number++) {
        const Visit& visit = mix_.cycle[number];
        if (!tracer_.follow(units, mix_.traces[visit.kind], first_[number])) return false;
        bytes_ += first_[number].bytes;
        if (visit.steps == 1) continue;
        if (!tracer_.follow(units, mix_.traces[visit.kind], later_[number])) return false;
        bytes_ += (visit.steps - 1) * later_[number].bytes;
    }
    return true;
}

void MixClock::visit(size_t number) {
    const Visit& visit = mix_.cycle[number];
    const std::vector<Use>& trace = mix_.traces[visit.kind];
    const double began = now_;
    double length = 0, lead = 0, behind = 0, middle = 0;
    for (uint32_t k = 0; k < visit.steps; k++) {
        const double step_began = now_, copied_before = copied_, returned_before = returned_, length_before = length,
                     lead_before = lead, behind_before = behind;
        step(trace, one_order_ ? first_[0] : k ? later_[number] : first_[number]);
        length = now_ - step_began;
        lead = copied_ - now_;
        behind = returned_ - now_;
        if (k + 1 == most_steps / 2) middle = now_;
        // Steps that are alike up to a shift are followed by such steps. A step without copies leaves copied_ alone.
        const bool still = (copied_ == copied_before || std::fabs(lead - lead_before) <= equal_times * length) &&
                           (returned_ == returned_before || std::fabs(behind - behind_before) <= equal_times * length);
        const bool alike = k > 0 && still && std::fabs(length - length_before) <= equal_times * length;
        if (!alike && k + 1 < most_steps) continue;
        if (!alike) length = (now_ - middle) / (most_steps - most_steps / 2);
        const double left = length * (visit.steps - k - 1);
        for (double& free : free_) free += left;
        now_ += left;
        if (copied_ != copied_before) copied_ += left;
        if (returned_ != returned_before) returned_ += left;
        break;
    }
    kind_ns_[visit.kind] += now_ - began;
}

void MixClock::step(std::span<const Use> trace, const StepProgramme& programme) {
    for (size_t j = 0; j < trace.size(); j++) {
        const uint32_t begin = programme.first_copy[j], end = programme.first_copy[j + 1];
        for (uint32_t k = begin; k < end; k++) {
            const Copy& copy = programme.copies[k];
            if (copy.fence_back && copy.fence_back <= free_.size())
                copied_ = std::max(copied_, free_[free_.size() - copy.fence_back]);
            copied_ += copy.ns;
        }
        if (begin != end) now_ = std::max(now_, copied_);
        now_ += static_cast<double>(trace[j].compute_ns);
        if (!programme.back_ns.empty() && programme.back_ns[j] > 0)
            returned_ = std::max(returned_, now_) + programme.back_ns[j];
        free_.push_back(std::max(now_, returned_));
    }
}

}  // namespace stagehand::policy
