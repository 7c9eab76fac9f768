#include "policy/budget_division.h"

#include <algorithm>
#include <numeric>

namespace stagehand::policy {
namespace {

// A new division is considered when a model is used this many times more or less often than at the last division.
constexpr double kShift = 1.5;

// The pages that can be divided: the budget within reach, and at least the pages that are claimed for certain.
uint64_t divisible(const Budget& budget, const Floors& floors) { return budget.there(floors.headroom_pages); }

// Raises the protected pages as far as no other model has a certain claim to the memory.
void raise_kept(const Budget& budget, std::span<Claim> claims) {
    for (size_t i = 0; i < claims.size(); i++) {
        if (claims[i].kept_pages >= claims[i].protected_pages) continue;
        const auto all = floors(budget.total, claims);
        if (!all) return;
        const uint64_t room = all->headroom_pages + all->pages[i];
        claims[i].kept_pages = std::max(claims[i].kept_pages, std::min(claims[i].protected_pages, room));
    }
}

bool is_possible(std::span<const uint64_t> divided, std::span<const Claim> claims, const Floors& floors,
                 uint64_t pages) {
    if (divided.size() != claims.size()) return false;
    uint64_t all = 0;
    for (size_t i = 0; i < claims.size(); i++) {
        if (claims[i].guest) continue;
        const uint64_t most = std::max(floors.pages[i], claims[i].runs ? claims[i].wanted_pages : 0);
        if (divided[i] < floors.pages[i] || divided[i] > most) return false;
        all += divided[i];
    }
    return all <= pages;
}

BudgetDivision with_guests(const Budget& budget, std::span<const Claim> claims, const Floors& floors,
                           std::vector<uint64_t> divided, bool anew) {
    BudgetDivision result;
    for (const Claim& claim : claims) result.kept.push_back(claim.kept_pages);
    result.shares = lend(divisible(budget, floors), divided, claims, floors);
    result.divided = std::move(divided);
    result.reserved = floors.reserved;
    result.headroom_pages = floors.headroom_pages;
    result.anew = anew;
    return result;
}

}  // namespace

uint64_t Budget::within_reach() const {
    const uint64_t left = std::min(total, present);
    return left - std::min(left, lost);
}

uint64_t Budget::there(uint64_t headroom_pages) const { return std::max(total - headroom_pages, within_reach()); }

std::optional<BudgetDivision> divide_budget(const Budget& budget, std::vector<Claim> claims,
                                            std::span<const uint64_t> before) {
    raise_kept(budget, claims);
    const auto all = floors(budget.total, claims);
    if (!all) return std::nullopt;
    const uint64_t pages = divisible(budget, *all);
    const bool anew = !is_possible(before, claims, *all, pages);
    return with_guests(budget, claims, *all,
                       anew ? divide(pages, claims, *all) : std::vector<uint64_t>(before.begin(), before.end()), anew);
}

std::optional<BudgetDivision> redivide_budget(const Budget& budget, const std::vector<Claim>& claims,
                                              std::span<const uint64_t> before, std::span<const double> rates) {
    bool shifted = false;
    for (size_t i = 0; i < claims.size(); i++) {
        const double now = claims[i].steps_per_second, then = rates[i];
        shifted = shifted || now > then * kShift || then > now * kShift;
    }
    const auto all = shifted ? floors(budget.total, claims) : std::nullopt;
    if (!all) return std::nullopt;
    std::vector<uint64_t> divided = divide(divisible(budget, *all), claims, *all);
    if (!worth_changing(stakes(claims, *all), before, divided)) return std::nullopt;
    return with_guests(budget, claims, *all, std::move(divided), true);
}

}  // namespace stagehand::policy
