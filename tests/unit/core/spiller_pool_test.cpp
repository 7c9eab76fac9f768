// The pinned memory of a spiller: configured classes, and a pool that learns its sizes.
#include "spiller_fixture.h"

namespace stagehand::test {
namespace {

TEST_F(SpillerTest, ThePoolLearnsTheSizesAndStopsAllocating) {
    create(keeping(0));
    for (uint64_t step = 0; step < 4; step++) {
        const sh_spiller_stats before = stats();
        SUCCEEDS(sh_spiller_begin_step(spiller_, step));
        std::vector<Saved> all;
        for (uint64_t seed = 0; seed < 12; seed++) all.push_back(save(seed, 0, kTensor + seed % 3 * 20'000));
        collect(SH_COLLECT_ALL);
        for (uint64_t seed = 0; seed < 12; seed++) {
            const uint64_t bytes = kTensor + seed % 3 * 20'000;
            EXPECT_EQ(restore(all[seed].ticket, bytes), contents(seed, bytes));
            SUCCEEDS(sh_ticket_release(spiller_, all[seed].ticket));
        }
        SUCCEEDS(sh_spiller_end_step(spiller_));
        uint64_t freed = 1;
        const sh_spiller_stats now = stats();
        EXPECT_EQ(now.pool_misses - before.pool_misses, step ? 0u : 12u) << step;
        EXPECT_EQ(now.unpinned_bytes, 0u);
        if (!step) wait_for_the_pool(12 * kTensor);
        if (step == 2) {
            EXPECT_LE(static_cast<double>(now.pool_bytes), 1.10 * static_cast<double>(now.away_peak_bytes));
        }
        if (step == 3) {
            SUCCEEDS(sh_spiller_trim(spiller_, &freed));
            EXPECT_EQ(freed, now.pool_bytes);
            EXPECT_EQ(stats().pool_bytes, 0u);
        }
    }
}

TEST_F(SpillerTest, ConfiguredClassesAreThereFromTheStartAndLargerOnesHelp) {
    sh_spill_class classes[2] = {SH_SPILL_CLASS_INIT, SH_SPILL_CLASS_INIT};
    classes[0].bytes = kTensor;
    classes[0].count = 2;
    classes[1].bytes = 4 * kTensor;
    classes[1].count = 1;
    sh_spiller_options options = keeping(0);
    options.classes = classes;
    options.class_count = 2;
    create(options);
    EXPECT_EQ(stats().pool_bytes, 6 * kTensor);
    std::vector<Saved> all;
    for (uint64_t seed = 0; seed < 4; seed++) all.push_back(save(seed));
    EXPECT_EQ(stats().pool_hits, 3u);
    EXPECT_EQ(stats().pool_misses, 1u);
    collect(SH_COLLECT_ALL);
    for (uint64_t seed = 0; seed < 4; seed++) EXPECT_EQ(restore(all[seed].ticket), contents(seed));
    Saved large = save(9, 0, 5 * kTensor);
    EXPECT_EQ(stats().pool_misses, 2u) << "larger than every class";
    collect(SH_COLLECT_ALL);
    EXPECT_EQ(restore(large.ticket, 5 * kTensor), contents(9, 5 * kTensor));
}

}  // namespace
}  // namespace stagehand::test
