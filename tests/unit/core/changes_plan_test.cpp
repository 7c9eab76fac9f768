// Plans count on the write-backs of blocks that the engine changes in each step: the ring gets room for what is on its
// way back.
#include <algorithm>

#include "engine.h"

namespace stagehand::test {
namespace {

class PlansForChanges : public testing::Test {
protected:
    PlansForChanges()
        : device_({.options = "capacity=256MiB;staging_piece=16KiB;poison=1", .budget_bytes = 80 * kPage}),
          model_(device_, equal_blocks(20, 8 * kPage, Origin::pinned, SH_BLOCK_MUTABLE)) {}

    // Steps that change these blocks and use all.
    void steps(int count, const std::vector<size_t>& changed) {
        for (int k = 0; k < count; k++) {
            model_.begin_step();
            for (size_t i = 0; i < model_.size(); i++) {
                sh_view view = model_.acquire(i);
                SUCCEEDS(model_.compare(i, view, SH_STREAM_HOST));
                if (std::find(changed.begin(), changed.end(), i) != changed.end()) {
                    SUCCEEDS(model_.overwrite(i, view, ++version_));
                }
                model_.release(i);
            }
            model_.end_step();
        }
    }
    uint64_t ring() { return model_.plan().ring_bytes; }
    uint64_t plans() { return model_.stats().plans; }
    void expect_right() {
        SUCCEEDS(sh_write_back(model_.runtime(), nullptr, 0));
        for (size_t i = 0; i < model_.size(); i++) EXPECT_EQ(model_.source(i).read(), *model_.truth(i)) << i;
    }

    TestDevice device_;
    Model model_;
    uint64_t version_ = 0;
};

TEST_F(PlansForChanges, give_room_while_the_engine_changes_and_take_it_back) {
    SUCCEEDS(model_.schedule(forward(model_.size()), 1));
    steps(2, {});
    const uint64_t fixed = ring(), before = plans();
    const uint64_t step_ns = model_.plan().step_ns;
    steps(3, forward(model_.size()));
    EXPECT_GT(ring(), fixed * 3 / 2);
    EXPECT_EQ(plans(), before + 1);
    EXPECT_GE(model_.plan().step_ns, step_ns);
    steps(6, forward(model_.size()));
    EXPECT_EQ(plans(), before + 1) << "nothing is new";
    steps(15, {});
    EXPECT_EQ(plans(), before + 1) << "it may change them again";
    steps(5, {});
    EXPECT_EQ(plans(), before + 2);
    EXPECT_EQ(ring(), fixed);
    expect_right();
}

// Every few steps, as an optimizer after several steps that accumulate.
TEST_F(PlansForChanges, stay_while_changes_come_at_intervals) {
    SUCCEEDS(model_.schedule(forward(model_.size()), 1));
    steps(2, {});
    const uint64_t fixed = ring(), before = plans();
    for (int interval = 2; interval <= 7; interval++) {
        for (int k = 0; k < 3; k++) {
            steps(1, forward(model_.size()));
            steps(interval - 1, {});
        }
        EXPECT_EQ(plans(), before + 1) << interval;
        EXPECT_GT(ring(), fixed * 3 / 2);
    }
    expect_right();
}

// At 20 steps with changes and 20 without, a plan for each would be made. It is followed more and more rarely.
TEST_F(PlansForChanges, become_rare_for_an_engine_that_changes_its_ways) {
    SUCCEEDS(model_.schedule(forward(model_.size()), 1));
    steps(2, {});
    const uint64_t before = plans();
    for (int k = 0; k < 16; k++) steps(20, k % 2 ? std::vector<size_t>() : forward(model_.size()));
    EXPECT_GE(plans(), before + 3);
    EXPECT_LE(plans(), before + 6) << "of 16";
    expect_right();
}

TEST_F(PlansForChanges, stay_for_a_change_that_comes_seldom) {
    SUCCEEDS(model_.schedule(forward(model_.size()), 1));
    steps(2, {});
    const uint64_t before = plans();
    for (int k = 0; k < 3; k++) {
        steps(1, forward(model_.size()));
        steps(8, {});
    }
    EXPECT_EQ(plans(), before);
    expect_right();
}

TEST_F(PlansForChanges, stay_if_little_changes) {
    SUCCEEDS(model_.schedule(forward(model_.size()), 1));
    steps(2, {});
    const uint64_t before = plans();
    steps(6, {3});
    EXPECT_EQ(plans(), before);
    expect_right();
}

}  // namespace
}  // namespace stagehand::test
