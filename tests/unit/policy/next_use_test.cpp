// The next use from a recorded trace, compared with a walk along the trace.
#include <gtest/gtest.h>

#include <random>

#include "policy/next_use.h"

namespace stagehand::policy::test {
namespace {

TEST(NextUse, AgreesWithWalkingAlong) {
    std::mt19937 random(51);
    for (int round = 0; round < 300; round++) {
        const uint32_t units = 1 + random() % 9;
        std::vector<Use> trace(1 + random() % 20);
        for (Use& use : trace) use = {static_cast<uint32_t>(random() % (units + 1)), random() % 50};
        NextUse next(trace, units);
        for (uint64_t position = 0; position < 2 * trace.size(); position++)
            for (uint32_t unit = 0; unit < units + 2; unit++) {
                uint64_t uses = NextUse::never;
                for (uint64_t ahead = 1; ahead <= trace.size() && unit < units; ahead++) {
                    if (trace[(position + ahead) % trace.size()].unit != unit) continue;
                    uses = ahead;
                    break;
                }
                ASSERT_EQ(uses, next.uses_until(unit, position));
            }
    }
}

TEST(NextUse, FurthestComesLast) {
    const std::vector<Use> trace = {{0, 1}, {1, 1}, {2, 1}, {3, 1}, {3, 1}, {2, 1}, {1, 1}, {0, 1}};
    NextUse next(trace, 6);
    const std::vector<uint32_t> all = {0, 1, 2, 3};
    EXPECT_EQ(0u, next.furthest(all, 3)) << "on the way back the first is needed last";
    EXPECT_EQ(3u, next.furthest(all, 7)) << "and forward the last one";
    EXPECT_EQ(1u, next.furthest(std::vector<uint32_t>{2, 5, 4, 3}, 0)) << "never used at all";
}

// An eviction of the unit that is used furthest in the future copies 2 (N - k) units per step of forward then
// backward.
TEST(NextUse, IsOptimalForwardThenBackward) {
    const uint32_t count = 12, slots = 5;
    std::vector<Use> trace;
    for (uint32_t u = 0; u < count; u++) trace.push_back({u, 1});
    for (uint32_t u = count; u-- > 0;) trace.push_back({u, 1});
    NextUse next(trace, count);
    std::vector<uint32_t> resident;
    uint32_t copied = 0;
    for (uint64_t j = 0; j < 6 * trace.size(); j++) {
        if (j == trace.size()) copied = 0;
        uint32_t unit = trace[j % trace.size()].unit;
        if (std::find(resident.begin(), resident.end(), unit) != resident.end()) continue;
        copied++;
        if (resident.size() == slots)
            resident[next.furthest(resident, j)] = unit;
        else
            resident.push_back(unit);
    }
    EXPECT_EQ(5 * 2 * (count - slots), copied);
}

TEST(NextUse, AnEmptyTraceNamesNoUse) {
    NextUse next({}, 3);
    EXPECT_EQ(NextUse::never, next.uses_until(0, 5));
    EXPECT_EQ(0u, next.furthest(std::vector<uint32_t>{1, 2}, 0));
}

}  // namespace
}  // namespace stagehand::policy::test
