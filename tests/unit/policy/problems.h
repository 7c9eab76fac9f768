// Problems for the planner's tests. A Case owns the data that a Problem only points to.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <memory>
#include <random>
#include <vector>

#include "policy/plan.h"

namespace stagehand::policy::test {

inline constexpr uint64_t MiB = uint64_t{1} << 20;

enum class Compute { equal, by_size, random };

struct Case {
    std::vector<Unit> units;
    std::vector<Use> trace;
    uint64_t page_bytes = 8 * MiB;
    uint64_t budget_pages = 0;
    uint32_t max_held = 1;
    double link = 55.5;
    uint64_t latency_ns = 0;
    bool contiguous = false;
    double back = 0;
    std::shared_ptr<std::vector<std::vector<Gap>>> gaps;  // that the units point to

    // Gives most units bytes that are not copied: at the end, as in blocks that the device unpacks, here and there, or
    // everywhere.
    void add_gaps(std::mt19937& random) {
        gaps = std::make_shared<std::vector<std::vector<Gap>>>(units.size());
        for (size_t u = 0; u < units.size(); u++) {
            std::vector<Gap>& own = (*gaps)[u];
            const uint64_t bytes = units[u].bytes;
            switch (random() % 4) {
                case 0:
                    break;
                case 1:  // the end
                    own.push_back({random() % bytes, 0, 0});
                    own[0].bytes = bytes - own[0].offset;
                    break;
                case 2: {  // here and there
                    uint64_t before = 0;
                    for (uint64_t at = random() % bytes; at < bytes; at += 1 + random() % bytes) {
                        const uint64_t size = 1 + random() % std::max<uint64_t>(1, bytes / 3);
                        own.push_back({at, std::min(size, bytes - at), before});
                        before += own.back().bytes;
                        at += own.back().bytes;
                    }
                    break;
                }
                default:  // all, or all but a quarter at the start
                    own.push_back({random() % 2 ? 0 : bytes / 4, 0, 0});
                    own[0].bytes = bytes - own[0].offset;
            }
            units[u].gaps = own;
        }
    }

    // Some units come from slow sources.
    void add_slow_sources(std::mt19937& random) {
        constexpr double kSlowdowns[] = {1, 1, 1.5, 4, 20};
        for (Unit& unit : units) unit.slowdown = kSlowdowns[random() % std::size(kSlowdowns)];
    }

    // Some units are changed in each use, and go back over a link of their own.
    void add_changes(std::mt19937& random) {
        constexpr double kSpeeds[] = {0.2, 1, 5};
        back = link * kSpeeds[random() % std::size(kSpeeds)];
        for (Unit& unit : units) unit.changes = random() % 3 > 0;
    }

    Problem problem() const {
        return {units, trace, page_bytes, budget_pages, max_held, link, latency_ns, contiguous, back};
    }

    uint64_t bytes() const {
        uint64_t sum = 0;
        for (const Unit& unit : units) sum += unit.bytes;
        return sum;
    }
    uint64_t pages() const {
        uint64_t sum = 0;
        for (const Unit& unit : units) sum += (unit.bytes + page_bytes - 1) / page_bytes;
        return sum;
    }
    // Returns the time of copying the bytes beyond the budget, in each pass over the units.
    double copy_ns() const {
        double passes = static_cast<double>(trace.size()) / static_cast<double>(units.size());
        return passes * static_cast<double>(bytes() - budget_pages * page_bytes) / link;
    }
    double compute_ns() const {
        double sum = 0;
        for (const Use& use : trace) sum += static_cast<double>(use.compute_ns);
        return sum;
    }

    void forward() {
        trace.clear();
        for (uint32_t u = 0; u < units.size(); u++) trace.push_back({u, 0});
    }
    void forward_backward() {
        forward();
        for (uint32_t u = static_cast<uint32_t>(units.size()); u-- > 0;) trace.push_back({u, 0});
    }
    // Makes all units whole and their parts contiguous, as on a device that does not map pages.
    void in_one_piece() {
        contiguous = true;
        for (Unit& unit : units) unit.whole = true;
    }
    void set_budget(double fraction) {
        budget_pages = static_cast<uint64_t>(fraction * static_cast<double>(bytes()) / static_cast<double>(page_bytes));
    }
    // Sets the compute times to `ratio` times copy_ns in total.
    void set_compute(double ratio, Compute how, uint32_t seed = 1) {
        std::mt19937 random(seed);
        std::vector<double> weight;
        double sum = 0;
        for (const Use& use : trace) {
            weight.push_back(how == Compute::equal     ? 1
                             : how == Compute::by_size ? static_cast<double>(units[use.unit].bytes)
                                                       : 1 + random() % 100);
            sum += weight.back();
        }
        for (size_t j = 0; j < trace.size(); j++)
            trace[j].compute_ns = static_cast<uint64_t>(std::llround(ratio * copy_ns() * weight[j] / sum));
    }
};

// The shapes of a language model of 8 billion weights: embedding, 32 layers, head.
inline Case eight_billion() {
    Case c;
    c.units.push_back({1002 * MiB});
    for (int layer = 0; layer < 32; layer++) c.units.push_back({416 * MiB});
    c.units.push_back({1002 * MiB});
    c.forward();
    return c;
}

inline Case unequal(uint32_t count, uint32_t seed) {
    std::mt19937 random(seed);
    Case c;
    c.page_bytes = 2 * MiB;
    for (uint32_t u = 0; u < count; u++) c.units.push_back({(1 + random() % 60) * MiB - random() % 4096});
    c.forward();
    return c;
}

// Small ones of every kind: up to `most_units` units of up to `most_pages` pages of 1000 bytes on a link of 1
// byte/ns, so that all times are whole numbers and exact. The budget is left to the caller.
inline Case small_random(std::mt19937& random, uint32_t most_units, uint32_t most_pages) {
    Case c;
    c.page_bytes = 1000;
    c.link = 1;
    const uint32_t count = 2 + random() % (most_units - 1);
    const bool some_whole = random() % 4 == 0, equal_sizes = random() % 2;
    for (uint32_t u = 0; u < count; u++)
        c.units.push_back({(1 + random() % most_pages) * uint64_t{1000} - (random() % 3 ? 0 : random() % 900),
                           some_whole && random() % 2});
    if (equal_sizes)
        for (Unit& unit : c.units) unit.bytes = c.units[0].bytes;
    switch (random() % 8) {
        case 0:  // any order, with units used twice in a row, often, or never
            for (uint32_t j = count + random() % count; j > 0; j--)
                c.trace.push_back({static_cast<uint32_t>(random() % count), 0});
            break;
        case 1:
        case 2:
        case 3:
            c.forward_backward();
            break;
        default:
            c.forward();
    }
    const bool equal_times = random() % 2;
    const double scale = std::pow(10.0, (random() % 200 - 100.0) / 100);
    for (Use& use : c.trace) use.compute_ns = static_cast<uint64_t>(1 + scale * (equal_times ? 2000 : random() % 4000));
    if (random() % 2) c.max_held = 1 + random() % 3;
    if (random() % 4 == 0) c.latency_ns = random() % 200;
    return c;
}

}  // namespace stagehand::policy::test
