// The link or a source gets slower or faster after the first plan: the plan follows, if that is worth it.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <thread>

#include "../../stress/scale.h"
#include "virtual_steps.h"

namespace stagehand::test {
namespace {

constexpr uint64_t kChangeNs = 3'000'000'000;

std::string link(double times) {
    return "bandwidth=" + std::to_string(static_cast<uint64_t>(times * VirtualSteps::kLink)) + "B/s";
}

std::string link_from_then_on(double times) { return link(1) + ";later_from=3s;later_" + link(times); }

class ChangingLink : public testing::TestWithParam<double> {};

TEST_P(ChangingLink, LeadsToThePlanOfARuntimeThatIsMadeForIt) {
    if (devices_without_pages() || kOneThreadOnly)
        GTEST_SKIP() << "the simulation maps memory by pages, and has one thread";
    double worst = 1;
    uint64_t cases = 0;
    for (const double compute : {0.3, 1.0, 3.0}) {
        for (const double speed : {0.25, 0.5, 2.0, 4.0}) {
            if (!in_sample(cases++)) continue;
            const double best = VirtualSteps({GetParam(), false, link(speed)}).run(24, compute);
            VirtualSteps changing({GetParam(), false, link_from_then_on(speed)});
            changing.run(20, compute);
            const uint64_t plans = changing.plans();
            while (changing.now() < kChangeNs) {
                EXPECT_EQ(changing.plans(), plans) << "nothing has changed so far";
                changing.run(5, compute);
            }
            const double unfollowed = changing.run(5, compute);
            changing.run(10, compute);
            const double followed = changing.run(5, compute);
            EXPECT_LE(followed, 1.02 * best) << compute << " at " << speed << ": " << followed / best;
            EXPECT_LE(changing.plans(), plans + 2) << compute << " at " << speed;
            worst = std::max(worst, unfollowed / best);
        }
    }
    EXPECT_TRUE(worst > 1.02 || !whole_length()) << "the old plan has to be worse, or this test shows nothing";
}

INSTANTIATE_TEST_SUITE_P(Budgets, ChangingLink, testing::Values(0.17, 0.4, 0.67, 0.85));

TEST(GivenLinkSpeed, IsTrusted) {
    if (devices_without_pages()) GTEST_SKIP() << "the simulation maps memory by pages";
    VirtualSteps steps({0.4, true, link_from_then_on(0.25)});
    steps.run(20, 1);
    const uint64_t plans = steps.plans();
    while (steps.now() < kChangeNs) steps.run(5, 1);
    steps.run(60, 1);
    EXPECT_EQ(steps.plans(), plans);
    EXPECT_EQ(steps.model().plan().link_bytes_per_second, VirtualSteps::kLink);
}

// Every second block comes from a source that is much slower than the link.
class SlowSources {
public:
    static constexpr size_t kBlocks = 12;

    SlowSources() {
        EXPECT_SUCCEEDS(sh_host_alloc(device_.get(), block_, &pinned_, nullptr));
        const sh_runtime_options options = SH_RUNTIME_OPTIONS_INIT;
        EXPECT_SUCCEEDS(sh_runtime_create(device_.get(), &options, &runtime_));
        std::vector<sh_segment> segments(kBlocks, SH_SEGMENT_INIT);
        std::vector<sh_block_desc> descs(kBlocks, SH_BLOCK_DESC_INIT);
        for (size_t i = 0; i < kBlocks; i++) {
            segments[i].bytes = descs[i].bytes = block_;
            if (is_slow(i)) {
                segments[i].kind = SH_SOURCE_FILL;
                segments[i].fill = fill;
                segments[i].user_data = this;
            } else {
                segments[i].kind = SH_SOURCE_POINTER;
                segments[i].pointer = pinned_;
            }
            descs[i].segments = &segments[i];
            descs[i].segment_count = 1;
        }
        EXPECT_SUCCEEDS(sh_register_blocks(runtime_, descs.data(), kBlocks, ids_));
        std::vector<sh_use> uses(kBlocks, SH_USE_INIT);
        for (size_t i = 0; i < kBlocks; i++) {
            uses[i].block = ids_[i];
            uses[i].compute_ns = 1000;  // given, so that only the speeds can change
        }
        EXPECT_SUCCEEDS(sh_set_schedule(runtime_, uses.data(), kBlocks));
    }
    ~SlowSources() {
        sh_runtime_destroy(runtime_);
        EXPECT_SUCCEEDS(sh_host_free(device_.get(), pinned_));
    }
    SlowSources(const SlowSources&) = delete;
    SlowSources& operator=(const SlowSources&) = delete;

    static bool is_slow(size_t block) { return block % 2 == 0; }
    void step() {
        EXPECT_SUCCEEDS(sh_step_begin(runtime_, nullptr));
        for (const sh_block id : ids_) {
            auto view = sh_sized<sh_view>();
            EXPECT_SUCCEEDS(sh_acquire(runtime_, id, SH_STREAM_HOST, 0, &view));
            EXPECT_SUCCEEDS(sh_release(runtime_, id, SH_STREAM_HOST));
        }
        EXPECT_SUCCEEDS(sh_step_end(runtime_));
    }
    uint64_t resident(bool slow) {
        uint64_t bytes = 0;
        for (size_t i = 0; i < kBlocks; i++) {
            auto state = sh_sized<sh_block_state>();
            EXPECT_SUCCEEDS(sh_block_get_state(runtime_, ids_[i], &state));
            if (is_slow(i) == slow) bytes += state.resident_bytes;
        }
        return bytes;
    }
    sh_plan_info plan_for(uint64_t pages) {
        sh_plan_options options = SH_PLAN_OPTIONS_INIT;
        options.flags = SH_PLAN_DRY_RUN;
        options.budget_bytes = pages * kPage;
        auto info = sh_sized<sh_plan_info>();
        EXPECT_SUCCEEDS(sh_plan(runtime_, &options, &info));
        return info;
    }

private:
    static int32_t fill(void* buffer, uint64_t, uint64_t bytes, void* user_data) {
        const SlowSources& self = *static_cast<SlowSources*>(user_data);
        std::memset(buffer, 1, bytes);
        std::this_thread::sleep_for(std::chrono::microseconds(500 * bytes / self.block_));
        return 0;
    }

    const uint64_t block_ = 4 * kPage;
    TestDevice device_{DeviceSettings{.budget_bytes = 28 * kPage}};
    void* pinned_ = nullptr;
    sh_runtime* runtime_ = nullptr;
    sh_block ids_[kBlocks] = {};
};

TEST(SourceSpeed, DecidesWhatStaysOnTheDevice) {
    SlowSources model;
    const uint64_t before = model.plan_for(16).bound_ns;
    model.step();
    EXPECT_LE(model.resident(true), model.resident(false)) << "the speeds are not known yet, or the test shows nothing";
    for (int i = 0; i < 300 && model.resident(true) <= model.resident(false); i++) model.step();
    EXPECT_GT(model.resident(true), 3 * model.resident(false)) << "bytes that come slowly stay";
    // Of 24 pages that come slowly, 16 stay. The others are the longer part of the step.
    const sh_plan_info after = model.plan_for(16);
    EXPECT_GT(after.bound_ns, 5 * before) << "no step is faster than its sources";
    EXPECT_GE(after.step_ns, after.bound_ns);
}

}  // namespace
}  // namespace stagehand::test
