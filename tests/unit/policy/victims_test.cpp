// The models that give memory up, compared with a sort of all parts, and the number of comparisons for it.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <tuple>

#include "policy/victims.h"

namespace stagehand::policy::test {
namespace {

constexpr double never = std::numeric_limits<double>::infinity();
using Pages = std::vector<uint64_t>;

// Owns the parts that a Holder only points to.
struct OwnHolder {
    Priority priority = Priority::none;
    double next_step_ns = 0;
    uint64_t spare_pages = UINT64_MAX;
    std::vector<Part> parts;

    operator Holder() const { return {priority, next_step_ns, spare_pages, parts}; }
};

Pages choose(uint64_t pages, const std::vector<OwnHolder>& own, uint64_t* comparisons = nullptr) {
    const std::vector<Holder> holders(own.begin(), own.end());
    return choose_victims(pages, holders, comparisons);
}

// Sorts all parts and takes them from the first on.
Pages choose_naively(uint64_t pages, const std::vector<OwnHolder>& holders) {
    struct Entry {
        Priority priority;
        double due_ns;
        size_t holder;
        uint64_t pages;
    };
    std::vector<Entry> entries;
    for (size_t h = 0; h < holders.size(); h++)
        for (const Part& part : holders[h].parts) {
            const double step = holders[h].next_step_ns;
            const bool is_never = std::isnan(step) || part.due_ns == UINT64_MAX;
            entries.push_back(
                {holders[h].priority, is_never ? never : step + static_cast<double>(part.due_ns), h, part.pages});
        }
    std::stable_sort(entries.begin(), entries.end(), [](const Entry& a, const Entry& b) {
        return std::tuple(a.priority, -a.due_ns, a.holder) < std::tuple(b.priority, -b.due_ns, b.holder);
    });
    Pages given(holders.size());
    for (const Entry& entry : entries) {
        if (entry.priority == Priority::primary) break;
        uint64_t& so_far = given[entry.holder];
        const uint64_t taken = std::min({pages, entry.pages, holders[entry.holder].spare_pages - so_far});
        so_far += taken;
        pages -= taken;
    }
    return given;
}

TEST(Victims, HugeNumbersDoNotOverflow) {
    const std::vector<OwnHolder> holders = {
        {.next_step_ns = 1e18, .parts = {{0, UINT64_MAX}, {UINT64_MAX - 1, UINT64_MAX}}},
        {.next_step_ns = 0, .parts = {{0, UINT64_MAX}}},
    };
    EXPECT_EQ((Pages{UINT64_MAX, 0}), choose(UINT64_MAX, holders));
    EXPECT_EQ((Pages{UINT64_MAX - 1, 0}), choose(UINT64_MAX - 1, holders));
    const std::vector<OwnHolder> limited = {
        {.next_step_ns = 1, .spare_pages = UINT64_MAX - 5, .parts = {{0, UINT64_MAX}, {1, UINT64_MAX}}},
        {.next_step_ns = 0, .parts = {{0, UINT64_MAX}}},
    };
    EXPECT_EQ((Pages{UINT64_MAX - 5, 5}), choose(UINT64_MAX, limited));
}

TEST(Victims, AreThoseOfASort) {
    std::mt19937_64 random(71);
    for (int round = 0; round < 20'000; round++) {
        std::vector<OwnHolder> holders(random() % 9);
        uint64_t all = 0;
        for (OwnHolder& holder : holders) {
            holder.priority = static_cast<Priority>(random() % 3);
            holder.next_step_ns = random() % 8   ? static_cast<double>(random() % 20) - 5
                                  : random() % 2 ? never
                                                 : std::nan("");
            if (random() % 2) holder.spare_pages = random() % 20;
            holder.parts.resize(random() % 12);
            for (Part& part : holder.parts) {
                part = {random() % 10 ? random() % 30 : UINT64_MAX, random() % 4};
                all += part.pages;
            }
            std::sort(holder.parts.begin(), holder.parts.end(),
                      [](const Part& a, const Part& b) { return a.due_ns < b.due_ns; });
        }
        const uint64_t pages = random() % (all + 5);
        const Pages given = choose(pages, holders);
        ASSERT_EQ(choose_naively(pages, holders), given) << "round " << round;
    }
}

std::vector<OwnHolder> eight_holders(uint64_t parts, uint64_t seed) {
    std::mt19937_64 random(seed);
    std::vector<OwnHolder> holders(8);
    for (OwnHolder& holder : holders) {
        holder.priority = random() % 4 ? Priority::none : Priority::secondary;
        holder.next_step_ns = static_cast<double>(random() % 1'000'000);
        for (uint64_t k = 0; k < parts / 8; k++) holder.parts.push_back({random() % 100'000'000, 1 + random() % 8});
        std::sort(holder.parts.begin(), holder.parts.end(),
                  [](const Part& a, const Part& b) { return a.due_ns < b.due_ns; });
    }
    return holders;
}

TEST(Victims, ComparisonsDoNotGrowWithTheParts) {
    for (uint64_t seed = 1; seed <= 3; seed++) {
        const std::vector<OwnHolder> few = eight_holders(1'000, seed);
        const std::vector<OwnHolder> many = eight_holders(1'000'000, seed);
        for (uint64_t pages : {1, 8, 64, 512}) {
            uint64_t with_few = 0, with_many = 0;
            choose(pages, few, &with_few);
            choose(pages, many, &with_many);
            EXPECT_GT(with_few, 0u) << pages << " pages";
            EXPECT_LE(static_cast<double>(with_many), 2.2 * static_cast<double>(with_few)) << pages << " pages";
            EXPECT_LE(with_many, 16 + 7 * pages) << "as the header says";
        }
    }
}

}  // namespace
}  // namespace stagehand::policy::test
