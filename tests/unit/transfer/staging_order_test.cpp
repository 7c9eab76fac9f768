// The order of loads, and the fate of loads that are not wanted any more.
#include "../count_allocations.h"
#include "staging_fixture.h"

namespace stagehand::transfer {
namespace {

using test::Latch;
using test::random_bytes;
using test::TestLoad;

class StagingOrder : public test::StagingTest {
protected:
    // The only worker is busy with a load whose read is held.
    void SetUp() override {
        test::StagingTest::SetUp();
        make_engine(1);
        make_memory(1 << 20);
        aim(blocker_, fill_source(test::fill_after_latch, &latch_, 10), 0);
        blocker_.load.deadline_ns = 0;
        ASSERT_TRUE(engine_->submit(blocker_.load).ok());
        latch_.wait_for_waiters(1);
    }
    void TearDown() override {
        latch_.open();
        EXPECT_TRUE(blocker_.outcome.wait().ok());
        synchronize();
    }
    TestLoad& queue(uint64_t deadline_ns) {
        TestLoad& load = loads_.emplace_back();
        aim(load, memory_source(bytes_), 4096 * loads_.size());
        load.load.deadline_ns = deadline_ns;
        load.order = &order_;
        EXPECT_TRUE(engine_->submit(load.load).ok());
        return load;
    }

    Latch latch_;
    TestLoad blocker_;
    std::vector<char> bytes_ = random_bytes(4096, 5);
    std::list<TestLoad> loads_;
    std::vector<TestLoad*> order_;
};

TEST_F(StagingOrder, EarlierDeadlinesComeFirst) {
    TestLoad &c = queue(30), &a = queue(10), &b = queue(20), &first = queue(0), &b2 = queue(20);
    latch_.open();
    for (TestLoad& load : loads_) EXPECT_TRUE(load.outcome.wait().ok());
    EXPECT_EQ(order_, (std::vector<TestLoad*>{&first, &a, &b, &b2, &c}));
}

TEST_F(StagingOrder, ALoadThatIsHurriedOvertakes) {
    TestLoad &a = queue(10), &b = queue(20), &c = queue(30);
    engine_->hurry(c.load, 5);
    engine_->hurry(a.load, 1000);  // a deadline never moves back
    latch_.open();
    for (TestLoad& load : loads_) EXPECT_TRUE(load.outcome.wait().ok());
    EXPECT_EQ(order_, (std::vector<TestLoad*>{&c, &a, &b}));
    engine_->hurry(a.load, 0);  // the load has finished, so nothing happens
}

TEST_F(StagingOrder, AQueuedLoadIsTakenBack) {
    TestLoad &a = queue(10), &b = queue(20);
    EXPECT_TRUE(engine_->cancel(a.load));
    EXPECT_FALSE(engine_->cancel(a.load));
    latch_.open();
    EXPECT_TRUE(b.outcome.wait().ok());
    synchronize();
    EXPECT_EQ(a.outcome.times(), 0);
    EXPECT_EQ(memory_[4096], kUntouched);
    EXPECT_TRUE(holds(8192, bytes_));
    EXPECT_FALSE(engine_->cancel(b.load));
    // A cancelled load may be submitted again.
    ASSERT_TRUE(engine_->submit(a.load).ok());
    EXPECT_TRUE(a.outcome.wait().ok());
}

}  // namespace
}  // namespace stagehand::transfer
