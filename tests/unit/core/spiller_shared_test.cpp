// Tickets that share a storage, saved on several streams: whose work a copy comes after, and which streams wait for it.
#include <thread>

#include "spiller_fixture.h"

namespace stagehand::test {
namespace {

class SharedStorage : public SpillerTest {
protected:
    static constexpr uint64_t kKey = 5;

    void TearDown() override {
        sh_stream_destroy(device_, other_);
        SpillerTest::TearDown();
    }
    void create_with_two_streams(uint64_t keep_bytes) {
        sh_spiller_options options = keeping(keep_bytes);
        sh_spill_class pinned = SH_SPILL_CLASS_INIT;  // so that no release waits on the host
        pinned.bytes = kTensor;
        pinned.count = 4;
        options.classes = &pinned;
        options.class_count = 1;
        create(options);
        SUCCEEDS(sh_stream_create(device_, &other_));
    }
    sh_ticket save_on(sh_stream stream, const EngineMemory& memory, uint32_t flags = 0, uint64_t key = kKey) {
        const int64_t bytes = kTensor;
        sh_saved_tensor tensor = SH_SAVED_TENSOR_INIT;
        tensor.element_bytes = 1;
        tensor.address = memory.address();
        tensor.dimensions = 1;
        tensor.sizes = &bytes;
        tensor.storage_key = key;
        tensor.used_bytes = 1;
        sh_ticket ticket = 0;
        EXPECT_GE(sh_spill(spiller_, &tensor, stream, flags, &ticket), 0) << why();
        return ticket;
    }

    sh_stream other_ = 0;
};

// Work that gives memory back, as an engine queues it after a release. It notes whether the copies were still held up.
struct Free {
    explicit Free(const std::atomic<bool>& held_up) : held_up(held_up) {}
    static void run(void* self) {
        Free& free = *static_cast<Free*>(self);
        free.too_early = free.held_up.load();
    }
    const std::atomic<bool>& held_up;
    std::atomic<bool> too_early{false};
};

// The copy waits in its lane behind another tensor, whose stream a gate holds up.
TEST_F(SharedStorage, EachStreamWaitsForTheCopyWhenItsLastTicketEnds) {
    create_with_two_streams(0);
    const sh_stream slow = another_stream();
    for (const bool first_ends_first : {true, false}) {
        EngineMemory before(kTensor), memory(kTensor, 7);
        std::atomic<bool> held_up{true};
        Free on_first(held_up), on_second(held_up);
        {
            StreamGate gate(device_, slow);
            const sh_ticket ahead = save_on(slow, before, SH_SPILL_NOW, 0);
            const sh_ticket first = save_on(stream_, memory, SH_SPILL_NOW), second = save_on(other_, memory);
            SUCCEEDS(sh_ticket_release(spiller_, first_ends_first ? first : second));
            SUCCEEDS(sh_ticket_release(spiller_, first_ends_first ? second : first));
            SUCCEEDS(sh_stream_launch(device_, stream_, Free::run, &on_first, 0));
            SUCCEEDS(sh_stream_launch(device_, other_, Free::run, &on_second, 0));
            std::this_thread::sleep_for(std::chrono::milliseconds(20));
            held_up = false;
            gate.open();
            SUCCEEDS(sh_stream_synchronize(device_, stream_));
            SUCCEEDS(sh_stream_synchronize(device_, other_));
            SUCCEEDS(sh_ticket_release(spiller_, ahead));
        }
        EXPECT_FALSE(on_first.too_early) << first_ends_first;
        EXPECT_FALSE(on_second.too_early) << first_ends_first;
    }
}

TEST_F(SharedStorage, TheCopyComesAfterTheWorkOfAllStreams) {
    create_with_two_streams(2 * kTensor);
    for (const sh_stream busy : {stream_, other_}) {
        EngineMemory memory(kTensor);
        StreamGate gate(device_, busy);
        SUCCEEDS(sh_stream_launch(
            device_, busy,
            [](void* bytes) { std::ranges::copy(contents(1), static_cast<std::vector<uint8_t>*>(bytes)->begin()); },
            &memory.bytes(), 0));
        const sh_ticket first = save_on(stream_, memory), second = save_on(other_, memory, SH_SPILL_NOW);
        std::this_thread::sleep_for(std::chrono::milliseconds(20));
        gate.open();
        EXPECT_EQ(collect(SH_COLLECT_ALL).size(), 2u);
        EXPECT_EQ(restore(first), contents(1)) << "stream " << busy;
        for (const sh_ticket ticket : {first, second}) SUCCEEDS(sh_ticket_release(spiller_, ticket));
    }
}

}  // namespace
}  // namespace stagehand::test
