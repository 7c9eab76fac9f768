#include "curve.h"

#include <algorithm>

namespace stagehand::cli {

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
        if (budget > smallest && budget < last && apart > whole / intervals / 4) {
            budgets.push_back(budget);
        }
    }
    std::sort(budgets.begin(), budgets.end());
    budgets.erase(std::unique(budgets.begin(), budgets.end()), budgets.end());
    return budgets;
}

}  // namespace stagehand::cli
