// The time of a step as a function of the budget: the points of the curve, and its picture.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <stagehand/stagehand.h>

namespace stagehand::cli {

class Planner;

// The figures of one plan.
struct CurvePoint {
    std::uint64_t budget_bytes = 0;
    std::uint64_t bytes_per_step = 0;
    std::uint64_t resident_bytes = 0;
    std::uint64_t ring_bytes = 0;
    double step_ms = 0;        // by the plan's recurrence
    double bound_ms = 0;       // max(compute, (W - M) / link)
    double plan_bound_ms = 0;  // proven for plans, which keep whole pages
};

struct Curve {
    std::string title;
    std::string subtitle;
    std::uint64_t model_bytes = 0;
    std::uint64_t smallest_budget_bytes = 0;
    double compute_ms = 0;
    double copy_all_ms = 0;          // the time to copy the whole model
    CurvePoint chosen;               // the plan for the budget of the command line
    std::vector<CurvePoint> points;  // by budget, ascending
};

// The budgets to plan for: from the smallest to the whole model, and the chosen one.
std::vector<std::uint64_t> curve_budgets(std::uint64_t smallest, std::uint64_t model, std::uint64_t page,
                                         std::uint64_t chosen);

// Fills in all figures: plans for each of those budgets. `info` is the plan for `budget_bytes`.
void fill_curve(const Planner& planner, bool quiet, const sh_plan_info& info, std::uint64_t budget_bytes, Curve& curve);

// The curve as an SVG file.
std::string curve_picture(const Curve& curve);

}  // namespace stagehand::cli
