#include "policy/evaluator.h"

namespace stagehand::policy {

Evaluator::Evaluator(const Shape& shape, uint32_t steps)
    : shape_(shape), steps_(steps), units_(shape.pages.size()), tracer_(shape), clock_(shape.problem->trace) {}

bool Evaluator::place(const Candidate& candidate) {
    uint64_t resident = 0;
    for (uint32_t u : shape_.order) {
        uint32_t part = candidate.parts[u];
        if (part > candidate.ring) return false;
        units_[u].streamed_pages = part;
        units_[u].resident_pages = shape_.pages[u] - part;
        resident += units_[u].resident_pages;
    }
    return resident + candidate.ring <= shape_.problem->budget_pages &&
           lay_out(shape_, candidate.layout, candidate.ring, units_) &&
           tracer_.trace(units_, candidate.ring, programme_);
}

std::optional<Cost> Evaluator::cost(const Candidate& candidate) {
    evaluations_++;
    if (!place(candidate)) return std::nullopt;
    clock_.restart();
    for (uint32_t s = 0; s < steps_; s++) {
        clock_.step(programme_);
        if (clock_.repeats()) break;
    }
    return Cost{clock_.period_ns(), programme_.bytes};
}

std::optional<Plan> Evaluator::plan(const Candidate& candidate, uint32_t steps) {
    if (!place(candidate)) return std::nullopt;
    clock_.restart();
    for (uint32_t s = 0; s < steps; s++) {
        clock_.step(programme_);
        if (clock_.repeats()) break;
    }
    Plan plan;
    plan.units = units_;
    for (uint32_t u : shape_.order) plan.resident_pages += units_[u].resident_pages;
    plan.ring_pages = candidate.ring;
    plan.bytes_per_step = programme_.bytes;
    plan.step_ns = clock_.period_ns();
    return plan;
}

}  // namespace stagehand::policy
