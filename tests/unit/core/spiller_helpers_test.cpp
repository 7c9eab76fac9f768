// Saved tensors that cross the links of several devices.
#include "core/device/helpers.h"
#include "spiller_fixture.h"
#include "transfer/bond/bond.h"

namespace stagehand::test {
namespace {

constexpr uint64_t kMegabyte = 1 << 20, kLarge = 4 * kMegabyte;
constexpr uint64_t kNever = 3'600'000'000'000;  // a helper that has begun a copy of its own is not quiet in this test

class SpillerHelpers : public SpillerTest {
protected:
    void SetUp() override {
        if (!on_host_backend()) GTEST_SKIP() << "it needs several devices";
        least_ = transfer::Bond::least_bytes();
        transfer::Bond::set_least_bytes(64 << 10);
        core::Helpers::set_quiet_ns(0);
        neighbour_ = opened("host:1", 1, nullptr, SH_HELPS_OTHERS);
        device_ = opened("host:0", 1, "host:1", 0);
        SUCCEEDS(sh_stream_create(device_, &stream_));
        const sh_spiller_options options = keeping(0);
        SUCCEEDS(sh_spiller_create(device_, &options, &spiller_));
    }
    void TearDown() override {
        SpillerTest::TearDown();
        sh_device_close(neighbour_);
        if (!least_) return;
        transfer::Bond::set_least_bytes(least_);
        core::Helpers::set_quiet_ns(100'000'000);
    }

    // A device with a link of so many GB/s.
    static sh_device* opened(const char* name, uint64_t speed, const char* helpers, uint32_t flags) {
        const std::string backend = "capacity=256MiB;latency=1us;bandwidth=" + std::to_string(speed) + "GB/s";
        sh_device_options options = SH_DEVICE_OPTIONS_INIT;
        options.backend_options = backend.c_str();
        options.budget_bytes = 128 * kMegabyte;
        options.link_bytes_per_second = speed * 1'000'000'000;
        options.helpers = helpers;
        options.device_flags = flags;
        sh_device* device = nullptr;
        EXPECT_SUCCEEDS(sh_device_open(name, &options, &device));
        return device;
    }
    // Copies something of the neighbour to the host.
    void use_neighbour_once() {
        uint64_t memory = 0;
        SUCCEEDS(sh_alloc(neighbour_, kMegabyte, nullptr, &memory));
        SUCCEEDS(sh_pause(neighbour_, nullptr, nullptr));
        SUCCEEDS(sh_free(neighbour_, memory));
    }
    uint64_t used_by_neighbour() const {
        sh_memory_info info = SH_MEMORY_INFO_INIT;
        EXPECT_SUCCEEDS(sh_device_get_memory(neighbour_, &info));
        return info.used_bytes;
    }

    // Saves so many tensors, and restores them in the reverse order. Returns the part that the helper has copied.
    double step(uint64_t count) {
        const sh_spiller_stats before = stats();
        EXPECT_SUCCEEDS(sh_spiller_begin_step(spiller_, steps_));
        std::vector<Saved> all;
        for (uint64_t i = 0; i < count; i++) {
            all.push_back(save(100 * steps_ + i, 0, kLarge));
            for (const sh_ticket ticket : collect())
                for (Saved& saved : all)
                    if (saved.ticket == ticket) give_back(saved);
        }
        for (const sh_ticket ticket : collect(SH_COLLECT_ALL))
            for (Saved& saved : all)
                if (saved.ticket == ticket) give_back(saved);
        for (uint64_t i = count; i-- > 0;) {
            EXPECT_EQ(restore(all[i].ticket, kLarge), contents(100 * steps_ + i, kLarge)) << i;
            EXPECT_SUCCEEDS(sh_ticket_release(spiller_, all[i].ticket));
        }
        EXPECT_SUCCEEDS(sh_spiller_end_step(spiller_));
        wait_for_the_pool(count * kLarge);
        steps_++;
        const sh_spiller_stats after = stats();
        const uint64_t copied = after.spill_bytes + after.restore_bytes - before.spill_bytes - before.restore_bytes;
        EXPECT_EQ(copied, 2 * count * kLarge);
        return static_cast<double>(after.helped_bytes - before.helped_bytes) / static_cast<double>(copied);
    }

    sh_device* neighbour_ = nullptr;
    uint64_t least_ = 0, steps_ = 0;
};

TEST_F(SpillerHelpers, TensorsLeaveAndComeBackOverBothLinks) {
    EXPECT_EQ(step(6), 0) << "nothing has shown yet that helpers are worth it";
    EXPECT_EQ(used_by_neighbour(), 0u);
    for (int k = 0; k < 3; k++) EXPECT_NEAR(step(6), 0.5, 0.1) << "links of 1 GB/s each";
    EXPECT_GT(used_by_neighbour(), 0u);
    SUCCEEDS(sh_spiller_trim(spiller_, nullptr));
    EXPECT_EQ(used_by_neighbour(), 0u);
    EXPECT_EQ(step(6), 0) << "after a trim, a step shows again what leaves";
    EXPECT_NEAR(step(6), 0.5, 0.1);
}

TEST_F(SpillerHelpers, ReturnTheirMemoryWhenNothingIsSpilled) {
    step(6);
    step(6);
    EXPECT_GT(used_by_neighbour(), 0u);
    EXPECT_SUCCEEDS(sh_spiller_begin_step(spiller_, 0));
    EXPECT_SUCCEEDS(sh_spiller_end_step(spiller_));
    EXPECT_GT(used_by_neighbour(), 0u);
    EXPECT_SUCCEEDS(sh_spiller_begin_step(spiller_, 1));
    EXPECT_EQ(used_by_neighbour(), 0u) << "the step before has spilled nothing";
    EXPECT_SUCCEEDS(sh_spiller_end_step(spiller_));
}

TEST_F(SpillerHelpers, AreNotAskedForLittle) {
    step(1);
    EXPECT_EQ(step(1), 0);
    EXPECT_EQ(used_by_neighbour(), 0u);
}

// A tensor that is released while it leaves gives its buffer to the next one, of another stream. One of both has the
// helper, whose copies are no part of the order of the device's.
TEST_F(SpillerHelpers, ABufferThatIsUsedAgainHasTheBytesOfTheLastTensor) {
    step(2);  // the pool then has two buffers
    use_neighbour_once();
    sh_stream other = 0;
    SUCCEEDS(sh_stream_create(device_, &other));
    EXPECT_SUCCEEDS(sh_spiller_begin_step(spiller_, 0));
    for (uint64_t i = 0; i < 40; i++) {
        core::Helpers::set_quiet_ns(i % 2 ? kNever : 0);
        for (int k = 0; k < 3; k++) EXPECT_SUCCEEDS(sh_ticket_release(spiller_, save(i, 0, kLarge).ticket));
        core::Helpers::set_quiet_ns(i % 2 ? 0 : kNever);
        std::swap(stream_, other);
        Saved last = save(i + 1, 0, kLarge);
        collect(SH_COLLECT_ALL);
        give_back(last);
        EXPECT_EQ(restore(last.ticket, kLarge), contents(i + 1, kLarge)) << i;
        EXPECT_SUCCEEDS(sh_ticket_release(spiller_, last.ticket));
        std::swap(stream_, other);
    }
    EXPECT_SUCCEEDS(sh_spiller_end_step(spiller_));
    EXPECT_GT(stats().helped_bytes, 100 * kMegabyte);
    sh_stream_destroy(device_, other);
}

TEST_F(SpillerHelpers, ANeighbourThatIsBusyIsLeftAlone) {
    step(6);
    use_neighbour_once();
    core::Helpers::set_quiet_ns(kNever);
    EXPECT_NEAR(step(6), 0.25, 0.05) << "its link to the host was busy, and the other direction is free";
    core::Helpers::set_quiet_ns(0);
    EXPECT_NEAR(step(6), 0.5, 0.1);
}

// The stream that makes the bytes is behind, and so is the one that uses the memory that they come back to.
TEST_F(SpillerHelpers, CopiesComeAfterTheWorkBeforeThem) {
    step(6);
    EXPECT_SUCCEEDS(sh_spiller_begin_step(spiller_, 0));
    EngineMemory made(kLarge, 1);
    sh_ticket ticket = 0;
    const auto fill = [](void* bytes) {
        std::this_thread::sleep_for(std::chrono::milliseconds(20));
        std::ranges::fill(*static_cast<std::vector<uint8_t>*>(bytes), uint8_t{7});
    };
    SUCCEEDS(sh_stream_launch(device_, stream_, fill, &made.bytes(), 0));
    EXPECT_EQ(spill(made.address(), kLarge, 0, &ticket), SH_OK);
    collect(SH_COLLECT_ALL);
    give_back(made);
    EngineMemory again(kLarge, 2);
    SUCCEEDS(sh_stream_launch(device_, stream_, fill, &again.bytes(), 0));
    give_back(again);
    SUCCEEDS(sh_restore(spiller_, ticket, again.address(), stream_));
    SUCCEEDS(sh_stream_synchronize(device_, stream_));
    EXPECT_EQ(again.bytes(), std::vector<uint8_t>(kLarge, 7));
    EXPECT_SUCCEEDS(sh_spiller_end_step(spiller_));
    EXPECT_GT(stats().helped_bytes, kLarge / 2);
}

}  // namespace
}  // namespace stagehand::test
