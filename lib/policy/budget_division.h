// The division of a device's budget in force: what protects pages, what each model should hold, and when a new division
// takes the place of the one before.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "policy/shares.h"

namespace stagehand::policy {

// The memory of a device, in pages.
struct Budget {
    uint64_t total = 0;
    uint64_t present = UINT64_MAX;  // others outside have taken the rest of the total
    uint64_t lost = 0;              // models have lost these when they left, and nobody gets them again

    uint64_t within_reach() const;
    // Pages beyond reach cannot be used for growth. Pages that are claimed for certain count as present.
    uint64_t there(uint64_t headroom_pages) const;
};

// Each list has one entry for each claim.
struct BudgetDivision {
    std::vector<uint64_t> kept;      // protected pages that count
    std::vector<uint64_t> divided;   // what the division gives, as if there were no guests
    std::vector<uint64_t> shares;    // what the models should hold
    std::vector<uint64_t> reserved;  // the parts of the reservations that are in force
    uint64_t headroom_pages = 0;     // the pages that no claim holds for certain, whether or not they are within reach
    bool anew = false;               // `divided` is not that of before
};

// Finds all shares. Keeps `before`, the divided pages in force, as long as they are possible. They are divided anew if
// it is empty. Nothing if the certain claims do not fit.
std::optional<BudgetDivision> divide_budget(const Budget& budget, std::vector<Claim> claims,
                                            std::span<const uint64_t> before);

// A new division, if it is worth the change. `rates` are the models' rates of use at the time of the division `before`.
std::optional<BudgetDivision> redivide_budget(const Budget& budget, const std::vector<Claim>& claims,
                                              std::span<const uint64_t> before, std::span<const double> rates);

}  // namespace stagehand::policy
