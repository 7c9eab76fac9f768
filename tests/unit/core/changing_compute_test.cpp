// The compute time of a step changes after the first plan: the plan follows, if that is worth it. In virtual time.
#include <algorithm>
#include <cmath>

#include "../../stress/scale.h"
#include "engine.h"

namespace stagehand::test {
namespace {

constexpr uint64_t kBlocks = 24, kBlock = 1 << 20;
constexpr uint64_t kCopyNs = 4'194'304;  // of a block

DeviceSettings virtual_time(double part) {
    DeviceSettings settings;
    settings.name = "sim";
    settings.options = "bandwidth=250MB/s;granularity=64KiB";
    settings.page_bytes = 64 << 10;
    settings.link_bytes_per_second = 250'000'000;
    settings.budget_bytes = static_cast<uint64_t>(part * kBlocks * kBlock) >> 16 << 16;
    return settings;
}

// An engine that computes for a part of the time that the copies of a step take.
class Steps {
public:
    explicit Steps(double part) : part_(part), device_(virtual_time(part)) {}

    // Makes steps. Returns the mean time of the last five, in nanoseconds.
    double run(int count, double compute_per_copy) {
        const int64_t busy = busy_ns(compute_per_copy);
        uint64_t began = 0, ended = 0;
        for (int i = 0; i < count; i++) {
            if (i == count - 5) began = now();
            step([&](size_t) { return busy; });
        }
        ended = now();
        return static_cast<double>(ended - began) / 5;
    }
    int64_t busy_ns(double compute_per_copy) const {
        return std::llround(compute_per_copy * (1 - part_) * static_cast<double>(kCopyNs));
    }
    template <class Busy>
    void step(Busy&& busy_ns) {
        EXPECT_SUCCEEDS(sh_step_begin(model_.runtime()));
        for (size_t i = 0; i < kBlocks; i++) {
            sh_view view = SH_VIEW_INIT;
            EXPECT_SUCCEEDS(sh_acquire(model_.runtime(), model_.id(i), stream_, 0, &view));
            EXPECT_SUCCEEDS(sh_stream_launch(device_.get(), stream_, nullptr, nullptr, busy_ns(i)));
            EXPECT_SUCCEEDS(sh_release(model_.runtime(), model_.id(i), stream_));
        }
        EXPECT_SUCCEEDS(sh_step_end(model_.runtime()));
        EXPECT_SUCCEEDS(sh_stream_synchronize(device_.get(), stream_));
    }
    uint64_t plans() { return model_.stats().plans; }
    Model& model() { return model_; }

private:
    uint64_t now() {
        uint64_t now = 0;
        EXPECT_SUCCEEDS(sh_device_get_clock(device_.get(), &now));
        return now;
    }

    const double part_;
    TestDevice device_;
    Model model_{device_, equal_blocks(kBlocks, kBlock)};
    const sh_stream stream_ = device_.stream();
};

class ChangingCompute : public testing::TestWithParam<double> {};

TEST_P(ChangingCompute, LeadsToThePlanOfARuntimeThatIsMadeForIt) {
    if (devices_without_pages() || kOneThreadOnly)
        GTEST_SKIP() << "the simulation maps memory by pages, and has one thread";
    double worst = 1;
    uint64_t cases = 0;
    for (const double before : {0.1, 1.0, 3.0}) {
        for (const double after : {0.1, 1.0, 3.0}) {
            if (before == after || !in_sample(cases++)) continue;
            const double best = Steps(GetParam()).run(24, after);
            Steps changing(GetParam());
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
    Steps steps(0.4);
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
    Steps steps(0.4);
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
    Steps steps(0.4);
    SUCCEEDS(steps.model().schedule(forward(kBlocks), static_cast<uint64_t>(steps.busy_ns(0.1))));
    steps.run(10, 0.1);
    const uint64_t plans = steps.plans();
    steps.run(60, 3);
    EXPECT_EQ(steps.plans(), plans);
}

}  // namespace
}  // namespace stagehand::test
