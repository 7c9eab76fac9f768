// A call cannot find out whether an issued load has ended, while others hold views of the block that is loaded. The
// call fails. The views keep their bytes, and nothing that was written through them is lost.
#include <latch>

#include "engine.h"
#include "fault/fault.h"
#include "plugin.h"

namespace stagehand::test {
namespace {

class FailedWaits : public testing::TestWithParam<const char*> {
protected:
    void SetUp() override {
        if (!std::getenv("STAGEHAND_BACKEND_PATH"))
            GTEST_SKIP() << "STAGEHAND_BACKEND_PATH does not lead to the fault backend";
    }

    // Makes the next call of the kind under test fail.
    static void sabotage() {
        sh_fault_plan plan = {sizeof plan, SH_ERROR_BACKEND, GetParam(), 1, 1};
        EXPECT_SUCCEEDS(plugin_function<decltype(sh_fault_arm)>("stagehand-fault.so", "sh_fault_arm")(&plan));
    }
};

// Two blocks that share pages. The second one is used on a stream that stands still, and the load of the first one
// waits for that use.
struct StuckLoad {
    StuckLoad()
        : device({.name = "fault",
                  .options = "wrap=" + device_under_test() + (on_host_backend() ? ";poison=1" : ""),
                  .budget_bytes = 9 * kPage}),
          model(device, blocks_of({6 * kPage, 6 * kPage}, Origin::pinned, SH_BLOCK_MUTABLE)) {
        EXPECT_SUCCEEDS(model.schedule(forward(2)));
        model.plan();
        sh_view other = SH_VIEW_INIT;
        const sh_stream stuck = device.stream();
        EXPECT_SUCCEEDS(sh_acquire(model.runtime(), model.id(1), stuck, 0, &other));
        EXPECT_SUCCEEDS(device.bytes().look(stuck, other.address, 1, [this](const uint8_t*) { go.wait(); }));
        EXPECT_SUCCEEDS(sh_release(model.runtime(), model.id(1), stuck));
        EXPECT_SUCCEEDS(sh_acquire(model.runtime(), model.id(0), stream, 0, &view));
    }
    sh_status acquire(size_t i) {
        sh_view ignored = SH_VIEW_INIT;
        return sh_acquire(model.runtime(), model.id(i), SH_STREAM_HOST, 0, &ignored);
    }

    std::latch go{1};
    TestDevice device;
    Model model;
    sh_stream stream = device.stream();
    sh_view view = SH_VIEW_INIT;  // of the first block, on `stream`
};

TEST_P(FailedWaits, views_of_others_keep_their_bytes) {
    StuckLoad load;
    sabotage();
    EXPECT_EQ(load.acquire(0), SH_ERROR_BACKEND) << why();
    load.go.count_down();
    EXPECT_EQ(load.acquire(1), SH_ERROR_HELD) << "pages that a view holds were given away";
    EXPECT_EQ(load.acquire(0), SH_ERROR_HELD) << "bytes that nobody vouches for were given";
    SUCCEEDS(load.model.compare(0, load.view, load.stream));
    SUCCEEDS(sh_release(load.model.runtime(), load.model.id(0), load.stream));
    EXPECT_EQ(load.model.stats().failed_loads, 1u);
    SUCCEEDS(load.model.use(0));
    EXPECT_GT(load.model.state(0).serial, load.view.serial) << "bytes that nobody vouches for were used again";
    SUCCEEDS(load.model.use(1));
    load.device.synchronize();
    EXPECT_EQ(load.model.wrong_uses(), 0u) << load.model.first_wrong();
}

TEST_P(FailedWaits, changes_of_others_are_not_lost) {
    StuckLoad load;
    sabotage();
    EXPECT_EQ(load.acquire(0), SH_ERROR_BACKEND) << why();
    SUCCEEDS(load.model.overwrite(0, load.view, 1, load.stream));
    SUCCEEDS(sh_release(load.model.runtime(), load.model.id(0), load.stream));
    load.go.count_down();
    SUCCEEDS(load.model.use(1));
    SUCCEEDS(load.model.use(0));
    SUCCEEDS(sh_write_back_all(load.model.runtime()));
    EXPECT_EQ(load.model.source(0).read(), *load.model.truth(0));
    load.device.synchronize();
    EXPECT_EQ(load.model.wrong_uses(), 0u) << load.model.first_wrong();
}

INSTANTIATE_TEST_SUITE_P(Calls, FailedWaits, testing::Values("event_synchronize", "event_query"),
                         [](const auto& info) { return std::string(info.param); });

}  // namespace
}  // namespace stagehand::test
