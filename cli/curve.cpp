#include "curve.h"

#include <algorithm>

#include "model/quantity.h"
#include "planner.h"
#include "progress.h"

namespace stagehand::cli {

namespace {

// `budget` is the budget that was asked for; the plan itself uses no more than the model needs.
CurvePoint point_of(std::uint64_t budget, const sh_plan_info& info) {
    return {budget,
            info.bytes_per_step,
            info.resident_bytes,
            info.ring_bytes,
            static_cast<double>(info.step_ns) / 1e6,
            static_cast<double>(info.bound_ns) / 1e6,
            static_cast<double>(info.plan_bound_ns) / 1e6};
}

}  // namespace

std::vector<std::uint64_t> curve_budgets(std::uint64_t smallest, std::uint64_t model, std::uint64_t page,
                                         std::uint64_t chosen) {
    constexpr std::uint64_t intervals = 24;
    page = std::max<std::uint64_t>(page, 1);
    const std::uint64_t whole = (model + page - 1) / page * page;
    const std::uint64_t last = std::max(whole, smallest);
    std::vector<std::uint64_t> budgets = {smallest, last, std::max(chosen, smallest)};
    for (std::uint64_t i = 1; i < intervals; ++i) {
        // Shares of the whole model, not of the range above the smallest budget, because people ask about round shares.
        const std::uint64_t budget = whole / intervals * i / page * page;
        // A budget next to the chosen one is left out, because it would only crowd the picture.
        const std::uint64_t apart = budget > chosen ? budget - chosen : chosen - budget;
        if (budget > smallest && budget < last && apart > whole / intervals / 4) budgets.push_back(budget);
    }
    std::sort(budgets.begin(), budgets.end());
    budgets.erase(std::unique(budgets.begin(), budgets.end()), budgets.end());
    return budgets;
}

void fill_curve(const Planner& planner, bool quiet, const sh_plan_info& info, std::uint64_t budget_bytes,
                Curve& curve) {
    curve.model_bytes = info.model_bytes;
    curve.smallest_budget_bytes = info.smallest_budget_bytes;
    curve.compute_ms = static_cast<double>(info.compute_ns) / 1e6;
    curve.copy_all_ms = static_cast<double>(info.model_bytes) * 1e3 /
                        static_cast<double>(std::max<std::uint64_t>(info.link_bytes_per_second, 1));
    curve.chosen = point_of(budget_bytes, info);
    const std::vector<std::uint64_t> budgets =
        curve_budgets(info.smallest_budget_bytes, info.model_bytes, planner.page_bytes(), budget_bytes);
    Progress progress(quiet ? ProgressStyle::quiet : ProgressStyle::bar_only);
    progress.begin("planning", budgets.size(), 1);
    for (std::size_t i = 0; i < budgets.size(); ++i) {
        const bool known = budgets[i] == budget_bytes;
        curve.points.push_back(known ? curve.chosen : point_of(budgets[i], planner.plan_for(budgets[i])));
        progress.step(i, model::format_bytes(budgets[i]));
    }
}

}  // namespace stagehand::cli
