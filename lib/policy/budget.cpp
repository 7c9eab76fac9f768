#include "policy/budget.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <utility>

#include "base/saturating.h"

namespace stagehand::policy {

namespace {

constexpr uint64_t steps_noticed = 64;

uint64_t minus(uint64_t a, uint64_t b) { return a > b ? a - b : 0; }

struct Share {
    size_t index;
    uint64_t room;  // the pages that it still wants
    double weight;
};

// Shares `rest` among shares of positive weight. Returns the pages that are left when all have what they want.
uint64_t share_out(uint64_t rest, std::vector<Share> shares, std::vector<uint64_t>& given) {
    // Starts with the shares that are satisfied soonest. A share whose room is below its part takes its room, and the
    // parts of the others grow.
    std::stable_sort(shares.begin(), shares.end(), [](const Share& a, const Share& b) {
        return static_cast<double>(a.room) / a.weight < static_cast<double>(b.room) / b.weight;
    });
    std::vector<double> weight(shares.size() + 1);  // of this share and those after it
    for (size_t k = shares.size(); k-- > 0;) weight[k] = weight[k + 1] + shares[k].weight;
    auto part_of = [&](size_t k, size_t first) {
        return static_cast<double>(rest) * (shares[k].weight / weight[first]);
    };
    size_t k = 0;
    for (; k < shares.size(); k++) {
        const Share& share = shares[k];
        if (static_cast<double>(share.room) > part_of(k, k) || share.room > rest) break;
        given[share.index] += share.room;
        rest -= share.room;
    }
    if (k == shares.size()) return rest;

    // The others get the whole pages of their parts. The remaining pages go to the largest fractions.
    struct Fraction {
        double left;
        size_t share;
    };
    std::vector<Fraction> fractions;
    uint64_t handed_out = 0;
    for (size_t j = k; j < shares.size(); j++) {
        double part = part_of(j, k);
        uint64_t pages = std::min({static_cast<uint64_t>(part), shares[j].room, rest - handed_out});
        given[shares[j].index] += pages;
        shares[j].room -= pages;
        handed_out += pages;
        fractions.push_back({part - static_cast<double>(pages), j});
    }
    std::stable_sort(fractions.begin(), fractions.end(), [&](const Fraction& a, const Fraction& b) {
        return a.left != b.left ? a.left > b.left : shares[a.share].index < shares[b.share].index;
    });
    // Rounding of huge numbers may leave more than a page for each share. Then each takes as much as it has room for.
    uint64_t over = rest - handed_out;
    const bool single = over <= fractions.size();
    for (int round = 0; round < 2 && over; round++)
        for (const Fraction& fraction : fractions) {
            Share& share = shares[fraction.share];
            uint64_t pages = std::min({over, share.room, single && round == 0 ? 1 : over});
            given[share.index] += pages;
            share.room -= pages;
            over -= pages;
        }
    return over;
}

}  // namespace

uint64_t automatic_budget(uint64_t free_bytes, uint64_t held_bytes, uint64_t margin_bytes) {
    return minus(saturating_sum(free_bytes, held_bytes), margin_bytes);
}

uint64_t clamp_growth(uint64_t wanted_bytes, uint64_t held_bytes, uint64_t free_bytes, uint64_t reserve_bytes) {
    uint64_t possible = saturating_sum(held_bytes, minus(free_bytes, reserve_bytes));
    return std::max(held_bytes, std::min(wanted_bytes, possible));
}

uint64_t noticed(uint64_t bytes, uint64_t page_bytes) {
    // The granularity follows the size itself. So a small size does not round to nothing, whatever the ceiling is.
    const uint64_t step = std::max(page_bytes, std::bit_floor(bytes / steps_noticed));
    return bytes / step * step;
}

std::optional<std::vector<uint64_t>> divide(uint64_t total_pages, std::span<const Request> requests) {
    std::vector<uint64_t> given(requests.size());
    uint64_t rest = total_pages;
    std::vector<Share> weighted, unweighted;
    for (size_t k = 0; k < requests.size(); k++) {
        const Request& request = requests[k];
        if (request.min_pages > rest) return std::nullopt;
        rest -= request.min_pages;
        given[k] = request.min_pages;
        uint64_t room = minus(request.want_pages, request.min_pages);
        if (room == 0) continue;
        bool heavy = request.weight > 0 && std::isfinite(request.weight);
        (heavy ? weighted : unweighted).push_back({k, room, heavy ? request.weight : 1});
    }
    rest = share_out(rest, std::move(weighted), given);
    share_out(rest, std::move(unweighted), given);
    return given;
}

}  // namespace stagehand::policy
