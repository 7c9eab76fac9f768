// WinnerTree: the largest of many ranks. A change of one rank costs O(log n), and a change of neighbours O(1) for each.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <limits>
#include <optional>
#include <utility>
#include <vector>

namespace stagehand::policy {

class WinnerTree {
public:
    static constexpr double kOut = -std::numeric_limits<double>::infinity();

    // Everybody is out at first.
    explicit WinnerTree(uint32_t count) : leaves_(std::bit_ceil(std::max(1u, count))), ranks_(leaves_, kOut) {
        winners_.resize(leaves_);
        for (uint32_t node = leaves_; node-- > 1;) winners_[node] = better(2 * node, 2 * node + 1);
    }

    double rank(uint32_t i) const { return ranks_[i]; }
    // Nothing if all are out. The first one among equals.
    std::optional<uint32_t> winner() const {
        const uint32_t best = at(1);
        if (ranks_[best] == kOut) return std::nullopt;
        return best;
    }

    void set(uint32_t i, double rank) {
        if (ranks_[i] == rank) return;
        ranks_[i] = rank;
        for (uint32_t node = (leaves_ + i) / 2; node > 0; node /= 2) {
            const uint32_t before = std::exchange(winners_[node], better(2 * node, 2 * node + 1));
            if (before != i && winners_[node] == before) return;  // nothing above knows of i
        }
    }
    // put() leaves the winner wrong until update() was called for all that were put.
    void put(uint32_t i, double rank) { ranks_[i] = rank; }
    void update(uint32_t first, uint32_t last) {
        uint32_t from = leaves_ + first, to = leaves_ + last;
        while (from > 1) {
            from /= 2;
            to /= 2;
            for (uint32_t node = from; node <= to; node++) winners_[node] = better(2 * node, 2 * node + 1);
        }
    }

private:
    uint32_t at(uint32_t node) const { return node < leaves_ ? winners_[node] : node - leaves_; }
    uint32_t better(uint32_t one, uint32_t other) const {
        return ranks_[at(other)] > ranks_[at(one)] ? at(other) : at(one);
    }

    uint32_t leaves_;
    std::vector<double> ranks_;
    std::vector<uint32_t> winners_;  // by node, from 1; node n has the children 2 n and 2 n + 1
};

}  // namespace stagehand::policy
