// The compute time of a step changes after the first plan: the plan follows, if that is worth it.
#include <algorithm>

#include "../../stress/scale.h"
#include "virtual_steps.h"

namespace stagehand::test {
namespace {

class ChangingCompute : public testing::TestWithParam<double> {};

TEST_P(ChangingCompute, LeadsToThePlanOfARuntimeThatIsMadeForIt) {
    if (devices_without_pages() || kOneThreadOnly)
        GTEST_SKIP() << "the simulation maps memory by pages, and has one thread";
    double worst = 1;
    uint64_t cases = 0;
    for (const double before : {0.1, 1.0, 3.0}) {
        for (const double after : {0.1, 1.0, 3.0}) {
            if (before == after || !in_sample(cases++)) continue;
            const double best = VirtualSteps({GetParam()}).run(24, after);
            VirtualSteps changing({GetParam()});
            changing.run(20, before);
            const uint64_t plans = changing.plans();
            const double unfollowed = changing.run(6, after);
            const double followed = changing.run(9, after);  // steps 11 to 15
            EXPECT_LE(followed, 1.02 * best) << before << " to " << after << ": " << followed / best;
            EXPECT_LE(changing.plans(), plans + 1) << before << " to " << after;
            worst = std::max(worst, unfollowed / best);
        }
    }
    EXPECT_TRUE(worst > 1.02 || !whole_length()) << "the old plan has to be worse, or this test shows nothing";
}

INSTANTIATE_TEST_SUITE_P(Budgets, ChangingCompute, testing::Values(0.17, 0.4, 0.67, 0.85));

TEST(UnchangingCompute, KeepsItsPlan) {
    if (devices_without_pages() || kOneThreadOnly)
        GTEST_SKIP() << "the simulation maps memory by pages, and has one thread";
    VirtualSteps steps({0.4});
    steps.run(10, 1);
    const uint64_t plans = steps.plans();
    uint64_t random = 1;
    for (int i = 0; i < 200; i++)
        steps.step([&](size_t) {  // a noise of 20 %
            random = random * 6364136223846793005 + 1442695040888963407;
            return steps.busy_ns(1) * static_cast<int64_t>(80 + (random >> 33) % 41) / 100;
        });
    EXPECT_EQ(steps.plans(), plans);
}

TEST(StepsInTurn, GetAPlanForBoth) {
    if (devices_without_pages() || kOneThreadOnly)
        GTEST_SKIP() << "the simulation maps memory by pages, and has one thread";
    VirtualSteps steps({0.4});
    steps.run(10, 1);
    const uint64_t plans = steps.plans();
    const auto in_turn = [&](int count) {
        for (int i = 0; i < count; i++) steps.step([&](size_t) { return steps.busy_ns(i % 2 ? 0.1 : 3); });
    };
    in_turn(100);
    EXPECT_LE(steps.plans(), plans + 2);
    const uint64_t settled = steps.plans();
    in_turn(200);
    EXPECT_EQ(steps.plans(), settled);
}

TEST(GivenTimes, AreTrusted) {
    VirtualSteps steps({0.4});
    SUCCEEDS(steps.model().schedule(forward(VirtualSteps::kBlocks), static_cast<uint64_t>(steps.busy_ns(0.1))));
    steps.run(10, 0.1);
    const uint64_t plans = steps.plans();
    steps.run(60, 3);
    EXPECT_EQ(steps.plans(), plans);
}

}  // namespace
}  // namespace stagehand::test
