#include "policy/shares.h"

#include <algorithm>
#include <numeric>

namespace stagehand::policy {

namespace {

uint64_t without_secondary(const Claim& claim) {
    const uint64_t runs = claim.guest ? claim.guest_pages : claim.runs ? claim.least_pages : 0;
    const uint64_t primary = claim.priority == Priority::primary ? claim.reserved_pages : 0;
    return std::max({runs, claim.kept_pages, primary});
}

uint64_t sum(std::span<const uint64_t> values) { return std::accumulate(values.begin(), values.end(), uint64_t{0}); }

uint64_t workspaces(std::span<const Claim> claims) {
    uint64_t pages = 0;
    for (const Claim& claim : claims)
        if (claim.guest) pages += claim.workspace_pages;
    return pages;
}

// The claims, starting with the furthest next step. Among equals, the earlier claim comes first.
std::vector<size_t> furthest_first(std::span<const Claim> claims) {
    std::vector<size_t> order(claims.size());
    std::iota(order.begin(), order.end(), size_t{0});
    std::stable_sort(order.begin(), order.end(),
                     [&](size_t a, size_t b) { return claims[a].next_step_ns > claims[b].next_step_ns; });
    return order;
}

}  // namespace

std::optional<Floors> floors(uint64_t pages, std::span<const Claim> claims) {
    Floors result;
    for (const Claim& claim : claims) {
        result.pages.push_back(std::max(without_secondary(claim), claim.reserved_pages));
        result.reserved.push_back(claim.reserved_pages);
    }
    uint64_t all = sum(result.pages) + workspaces(claims);
    if (all > pages)
        for (const size_t i : furthest_first(claims)) {
            if (claims[i].priority != Priority::secondary || all <= pages) continue;
            const uint64_t cut = std::min(all - pages, result.pages[i] - without_secondary(claims[i]));
            if (!cut) continue;
            all -= cut;
            result.pages[i] -= cut;
            result.reserved[i] = std::min(result.reserved[i], result.pages[i]);
        }
    if (all > pages) return std::nullopt;
    result.headroom_pages = pages - all;
    return result;
}

std::vector<Stake> stakes(std::span<const Claim> claims, const Floors& floors) {
    double most_often = 0;
    for (const Claim& claim : claims) most_often = std::max(most_often, claim.steps_per_second);
    if (most_often == 0) most_often = 1;
    std::vector<Stake> result;
    for (size_t i = 0; i < claims.size(); i++) {
        Stake stake;
        if (!claims[i].guest) {
            stake.floor_pages = floors.pages[i];
            stake.most_pages = std::max(floors.pages[i], claims[i].runs ? claims[i].wanted_pages : 0);
            stake.steps_per_second = claims[i].steps_per_second > 0 ? claims[i].steps_per_second : most_often;
            stake.curve = claims[i].curve;
        }
        result.push_back(stake);
    }
    return result;
}

std::vector<uint64_t> divide(uint64_t pages, std::span<const Claim> claims, const Floors& floors) {
    return divide_by_value(pages, stakes(claims, floors)).value_or(std::vector<uint64_t>(claims.size()));
}

std::vector<uint64_t> lend(uint64_t pages, std::span<const uint64_t> divided, std::span<const Claim> claims,
                           const Floors& floors) {
    std::vector<uint64_t> shares(divided.begin(), divided.end());
    std::vector<Holder> holders(claims.size());
    uint64_t guests = workspaces(claims);
    for (size_t i = 0; i < claims.size(); i++) {
        if (claims[i].guest) {
            shares[i] = floors.pages[i];
            guests += floors.pages[i];
        } else {
            holders[i] = {Priority::none, claims[i].next_step_ns, shares[i] - std::min(shares[i], floors.pages[i]),
                          claims[i].parts};
        }
    }
    const uint64_t all = sum(divided) + guests;
    uint64_t wanted = all > pages ? all - pages : 0;
    const std::vector<uint64_t> given = choose_victims(wanted, holders);
    for (size_t i = 0; i < claims.size(); i++) {
        shares[i] -= given[i];
        holders[i].spare_pages -= given[i];
        wanted -= given[i];
    }
    // Pages that belong to no part, such as those of a ring, go last.
    for (const size_t i : furthest_first(claims)) {
        const uint64_t more = std::min(wanted, holders[i].spare_pages);
        shares[i] -= more;
        wanted -= more;
    }
    return shares;
}

}  // namespace stagehand::policy
