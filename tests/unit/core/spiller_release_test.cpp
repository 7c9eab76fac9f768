// Memory that copies back still use when its owner lets it go: that of a released ticket, and that of a pool that is
// trimmed.
#include <thread>

#include "spiller_fixture.h"

namespace stagehand::test {
namespace {

class SpillerRelease : public SpillerTest {
protected:
    // A spiller whose pool has host memory for one tensor.
    void open(const char* device_options) {
        sh_spill_class size_class = SH_SPILL_CLASS_INIT;
        size_class.bytes = kTensor;
        size_class.count = 1;
        sh_spiller_options options = keeping(0);
        options.classes = &size_class;
        options.class_count = 1;
        create(options, device_options);
        SUCCEEDS(sh_stream_create(device_, &other_));
    }
    void TearDown() override {
        sh_stream_destroy(device_, other_);
        SpillerTest::TearDown();
    }
    // A tensor that is away, whose bytes have arrived.
    Saved away(uint64_t seed) {
        Saved saved = save(seed);
        EXPECT_EQ(collect(SH_COLLECT_ALL).size(), 1u);
        EXPECT_SUCCEEDS(sh_stream_synchronize(device_, stream_));
        return saved;
    }

    sh_stream other_ = 0;
};

// The engine gives the memory to others in the order of its stream, which so has to wait for the copy.
TEST_F(SpillerRelease, MemoryOfAPrefetchIsTheEnginesAgainAfterTheCopy) {
    open("capacity=64MiB;bandwidth=2MB/s");
    const Saved saved = away(1);
    EngineMemory memory(kTensor, 0xdd);
    const uint64_t address = memory.address();
    SUCCEEDS(sh_prefetch_spilled(spiller_, &saved.ticket, &address, 1, other_));
    SUCCEEDS(sh_ticket_release(spiller_, saved.ticket));
    SUCCEEDS(sh_stream_launch(
        device_, other_,
        [](void* bytes) { std::ranges::fill(*static_cast<std::vector<uint8_t>*>(bytes), uint8_t{0xee}); },
        &memory.bytes(), 0));
    SUCCEEDS(sh_stream_synchronize(device_, other_));
    SUCCEEDS(sh_spiller_trim(spiller_, nullptr));  // after all copies
    EXPECT_EQ(memory.bytes(), std::vector<uint8_t>(kTensor, 0xee)) << "the copy came after the engine's next use";
}

TEST_F(SpillerRelease, ATrimWaitsForCopiesBack) {
    open("capacity=64MiB");
    const Saved saved = away(1);
    EngineMemory memory(kTensor, 0xdd);
    std::atomic<bool> trimmed{false};
    uint64_t freed = 0;
    {
        StreamGate gate(device_, other_);
        SUCCEEDS(sh_restore(spiller_, saved.ticket, memory.address(), other_));
        SUCCEEDS(sh_ticket_release(spiller_, saved.ticket));
        std::thread trims([&] {
            EXPECT_SUCCEEDS(sh_spiller_trim(spiller_, &freed));
            trimmed = true;
        });
        std::this_thread::sleep_for(std::chrono::milliseconds(20));  // a trim that does not wait has ended by now
        EXPECT_FALSE(trimmed) << "host memory was freed that a copy reads";
        gate.open();
        trims.join();
    }
    EXPECT_EQ(freed, kTensor);
    SUCCEEDS(sh_stream_synchronize(device_, other_));
    EXPECT_EQ(memory.bytes(), contents(1));
}

}  // namespace
}  // namespace stagehand::test
