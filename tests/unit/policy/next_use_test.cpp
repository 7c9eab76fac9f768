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

TEST(NextUse, AnEmptyTraceNamesNoUse) {
    NextUse next({}, 3);
    EXPECT_EQ(NextUse::never, next.uses_until(0, 5));
    EXPECT_EQ(0u, next.furthest(std::vector<uint32_t>{1, 2}, 0));
}

}  // namespace
}  // namespace stagehand::policy::test
