// What a spiller does ahead of need: tensors leave from the beginning of a step on, and come back into memory that the
// backward has freed.
#include "spiller_fixture.h"

namespace stagehand::test {
namespace {

class SpillerAheadTest : public SpillerTest {
protected:
    static constexpr uint64_t kSaved = 10, kKept = 4;

    void create_slow(uint64_t to_host_bytes, uint64_t to_device_bytes) {
        sh_spiller_options options = keeping(kKept * kTensor);
        options.to_host_bytes = to_host_bytes;
        options.to_device_bytes = to_device_bytes;
        create(options, "capacity=64MiB;bandwidth=20MB/s");
    }
    // Saves ten tensors. Returns how many stayed at first.
    uint64_t forward(std::vector<Saved>* all) {
        uint64_t stayed = 0;
        for (uint64_t seed = 0; seed < kSaved; seed++) {
            all->push_back(save(seed));
            stayed += all->back().status == SH_KEPT;
            collect();
        }
        return stayed;
    }
    void backward(std::vector<Saved>& all) {
        for (uint64_t i = kSaved; i-- > 0;) {
            if (info(all[i].ticket).state == SH_TICKET_AWAY) {
                EXPECT_EQ(restore(all[i].ticket), contents(i)) << i;
            } else {
                EXPECT_EQ(sh_restore(spiller_, all[i].ticket, 0, stream_), SH_KEPT);
                EXPECT_EQ(all[i].memory->bytes(), contents(i)) << i;
            }
            SUCCEEDS(sh_ticket_release(spiller_, all[i].ticket));
        }
    }
    uint64_t upcoming(uint64_t used) {
        sh_ticket next[16] = {};
        uint64_t count = 0;
        EXPECT_SUCCEEDS(sh_spiller_get_upcoming(spiller_, used, next, 16, &count));
        return count;
    }
};

TEST_F(SpillerAheadTest, TheOldestTensorsLeaveAtOnceAfterAStep) {
    create_slow(64 * kTensor, 64 * kTensor);
    for (uint64_t step = 0; step < 3; step++) {
        SUCCEEDS(sh_spiller_begin_step(spiller_, step));
        std::vector<Saved> all;
        EXPECT_EQ(forward(&all), step ? kKept : kSaved) << step;
        collect(SH_COLLECT_ALL);
        for (uint64_t i = 0; i < kSaved; i++) EXPECT_EQ(info(all[i].ticket).state == SH_TICKET_KEPT, i >= 6) << i;
        backward(all);
        SUCCEEDS(sh_spiller_end_step(spiller_));
    }
    EXPECT_EQ(stats().spill_bytes, 3 * 6 * kTensor);
}

TEST_F(SpillerAheadTest, NobodyWaitsForWhatLeavesEarly) {
    create_slow(kTensor, 64 * kTensor);
    uint64_t waits = 0;
    for (uint64_t step = 0; step < 2; step++) {
        SUCCEEDS(sh_spiller_begin_step(spiller_, step));
        std::vector<Saved> all;
        for (uint64_t seed = 0; seed < kSaved; seed++) {
            all.push_back(save(seed));
            if (seed < kKept) collect();
        }
        SUCCEEDS(sh_stream_synchronize(device_, stream_));
        if (step) {
            EXPECT_EQ(stats().stall_count, waits) << "kept and leaving tensors are within the bounds together";
        }
        collect(SH_COLLECT_ALL);
        backward(all);
        SUCCEEDS(sh_spiller_end_step(spiller_));
        SUCCEEDS(sh_stream_synchronize(device_, stream_));
        waits = stats().stall_count;
        EXPECT_GT(waits, 0u);
    }
}

// The engine gives memory back when collect() names the ticket. Before that, nothing has to come back.
TEST_F(SpillerAheadTest, OnlyTicketsThatTheEngineWasToldOfAreUpcoming) {
    create(keeping(0));
    Saved first = save(1), second = save(2);
    sh_ticket told = 0;
    uint64_t count = 0;
    SUCCEEDS(sh_spiller_collect(spiller_, SH_STREAM_HOST, SH_COLLECT_ALL, &told, 1, &count));
    EXPECT_EQ(count, 1u);
    EXPECT_EQ(told, first.ticket);
    EXPECT_EQ(info(second.ticket).state, uint32_t(SH_TICKET_AWAY));
    EXPECT_EQ(upcoming(0), 1u);
    EXPECT_EQ(collect(), std::vector<sh_ticket>{second.ticket});
    EXPECT_EQ(upcoming(0), 2u);
    for (const sh_ticket ticket : {first.ticket, second.ticket}) SUCCEEDS(sh_ticket_release(spiller_, ticket));
}

// An engine without steps, one of whose tickets lives on.
TEST_F(SpillerAheadTest, TheOrderDoesNotGrowForEver) {
    create(keeping(0));
    Saved first = save(1);
    collect(SH_COLLECT_ALL);
    EXPECT_EQ(upcoming(0), 1u);
    for (uint64_t i = 0; i < 20'000; i++) {
        sh_ticket ticket = 0;
        EXPECT_GE(spill(first.memory->address(), 1, SH_SPILL_KEEP, &ticket), 0);
        SUCCEEDS(sh_ticket_release(spiller_, ticket));
    }
    EXPECT_EQ(upcoming(0), 0u) << "the order began again, and the ticket is of a step before";
    EXPECT_EQ(restore(first.ticket), contents(1));
    SUCCEEDS(sh_ticket_release(spiller_, first.ticket));
}

}  // namespace
}  // namespace stagehand::test
