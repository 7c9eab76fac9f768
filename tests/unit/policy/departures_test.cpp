#include "policy/departures.h"

#include <gtest/gtest.h>

namespace stagehand::policy {
namespace {

// A forward that saves tensors of 10 bytes. What is due leaves at once, and what is beyond the limits later. Returns
// the bytes that left before a limit asked for it.
uint64_t forward(Departures& departures, const KeepLimits& limits, uint64_t tensors, uint64_t other_use = 0) {
    Watermarks marks{limits};
    uint64_t kept = 0, away = 0, early = 0;
    departures.begin_step();
    for (uint64_t i = 0; i < tensors; i++) {
        kept += 10;
        while (kept && departures.is_due()) {
            departures.left(10);
            kept -= 10, away += 10, early += 10;
        }
        const MemoryInUse now{other_use + kept, 0, kept};
        departures.saw(now, away);
        const uint64_t late = (marks.look(now).may + 9) / 10 * 10;
        if (late) departures.left(late);
        kept -= late, away += late;
    }
    departures.end_step();
    return early;
}

TEST(Departures, NothingIsForeseenWithoutAStep) {
    Departures departures{KeepLimits{100, 50, 30}};
    EXPECT_FALSE(departures.is_due());
    EXPECT_EQ(forward(departures, {}, 20), 0u);
}

TEST(Departures, AStepSendsAwayAtOnceWhatTheLastOneSent) {
    const KeepLimits limits{UINT64_MAX, UINT64_MAX, 50};
    Departures departures{limits};
    EXPECT_EQ(forward(departures, limits, 20), 0u);
    EXPECT_EQ(departures.foreseen(), 150u);
    EXPECT_EQ(forward(departures, limits, 20), 150u);
    EXPECT_EQ(forward(departures, limits, 20), 150u);
    EXPECT_EQ(forward(departures, limits, 8), 80u) << "a shorter step is not foreseen";
    EXPECT_EQ(forward(departures, limits, 8), 30u);
    EXPECT_EQ(forward(departures, limits, 4), 30u);
    EXPECT_EQ(forward(departures, limits, 4), 0u);
}

TEST(Departures, AStepThatSavesNothingChangesNothing) {
    const KeepLimits limits{UINT64_MAX, UINT64_MAX, 50};
    Departures departures{limits};
    forward(departures, limits, 20);
    forward(departures, limits, 0);
    EXPECT_EQ(departures.foreseen(), 150u);
}

TEST(Departures, FollowTheUseOfTheDevice) {
    const KeepLimits limits{200, 150, UINT64_MAX};
    Departures departures{limits};
    forward(departures, limits, 20, 60);  // 60 to 260 bytes in use
    const uint64_t first = departures.foreseen();
    EXPECT_GE(first, 60u);
    EXPECT_LE(first, 110u) << "at most down to the low mark";
    EXPECT_EQ(forward(departures, limits, 20, 60), first);
    EXPECT_EQ(departures.foreseen(), first) << "between the marks nothing changes";
    EXPECT_EQ(forward(departures, limits, 20, 10), first);
    EXPECT_LT(departures.foreseen(), first) << "use stayed below the low mark";
    EXPECT_EQ(forward(departures, limits, 20, 10), departures.foreseen());
    forward(departures, limits, 5, 10);
    EXPECT_EQ(departures.foreseen(), 0u);
}

}  // namespace
}  // namespace stagehand::policy
