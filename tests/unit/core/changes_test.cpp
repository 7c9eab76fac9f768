// The engine's changes on the device reach the source once and completely, whatever happens to neighbours, order and
// plan meanwhile.
#include <thread>

#include "engine.h"

namespace stagehand::test {
namespace {

// A link that makes a write-back slow, so that tests meet it under way.
DeviceSettings slow_link(uint64_t pages) {
    DeviceSettings settings{.budget_bytes = pages * kPage};
    if (on_host_backend()) settings.options += ";bandwidth=4MB/s";
    return settings;
}

std::vector<BlockSpec> mutable_blocks(size_t count, uint64_t bytes, Origin origin, uint32_t flags = 0) {
    return equal_blocks(count, bytes, origin, SH_BLOCK_MUTABLE | flags);
}

// The engine changes the block on the calling thread.
void change(Model& model, size_t i, uint64_t version) { model.rewrite(i, version); }

class Changes : public testing::TestWithParam<Origin> {};  // sources that can be written

// The CPU gathers a load of many small pinned pieces. No event of the device delays the CPU.
TEST(ChangesIn, many_small_pieces_are_there_when_they_are_loaded_again) {
    constexpr size_t kPieces = 20;
    TestDevice device(slow_link(kPieces + 2));
    sh_runtime* runtime = nullptr;
    SUCCEEDS(sh_runtime_create(device.get(), nullptr, &runtime));
    std::unique_ptr<sh_runtime, decltype(&sh_runtime_destroy)> owner(runtime, sh_runtime_destroy);
    void* memory = nullptr;  // every second page is the block's, and the other block follows
    SUCCEEDS(sh_host_alloc(device.get(), 3 * kPieces * kPage, &memory, nullptr));
    uint8_t* const bytes = static_cast<uint8_t*>(memory);
    std::fill_n(bytes, 3 * kPieces * kPage, uint8_t(1));
    std::vector<sh_segment> segments(kPieces + 1, SH_SEGMENT_INIT);
    for (size_t i = 0; i <= kPieces; i++) {
        segments[i].kind = SH_SOURCE_POINTER;
        segments[i].pointer = bytes + 2 * i * kPage;
        segments[i].bytes = i < kPieces ? kPage : kPieces * kPage;
        segments[i].offset = i < kPieces ? i * kPage : 0;
    }
    sh_block_desc descs[2] = {SH_BLOCK_DESC_INIT, SH_BLOCK_DESC_INIT};
    for (size_t i = 0; i < 2; i++) {
        descs[i].bytes = kPieces * kPage;
        descs[i].segments = i ? &segments[kPieces] : segments.data();
        descs[i].segment_count = i ? 1 : kPieces;
        descs[i].flags = SH_BLOCK_WHOLE | (i ? 0 : SH_BLOCK_MUTABLE);
    }
    sh_block ids[2];
    SUCCEEDS(sh_register_blocks(runtime, descs, 2, ids));
    sh_use uses[2] = {SH_USE_INIT, SH_USE_INIT};
    for (size_t i = 0; i < 2; i++) uses[i].block = ids[i], uses[i].compute_ns = 1000;
    SUCCEEDS(sh_set_schedule(runtime, uses, 2));
    const sh_stream stream = device.stream();
    for (uint8_t step = 1; step < 6; step++) {
        auto view = sh_sized<sh_view>();
        SUCCEEDS(sh_step_begin(runtime, nullptr));
        view = held_view(runtime, ids[0]);
        SUCCEEDS(sh_mark_dirty(runtime, ids[0]));
        for (size_t i = 0; i < kPieces; i++) {
            uint8_t* const piece = static_cast<uint8_t*>(view.address) + i * kPage;
            EXPECT_EQ(device.bytes().read(piece, kPage), std::vector<uint8_t>(kPage, step))
                << "step " << int(step) << ", piece " << i;
            SUCCEEDS(device.bytes().write(SH_STREAM_HOST, piece, std::vector<uint8_t>(kPage, uint8_t(step + 1))));
        }
        let_go(runtime, ids[0]);
        view = held_view(runtime, ids[1], stream);
        let_go(runtime, ids[1], stream);
        SUCCEEDS(sh_step_end(runtime));
    }
    owner.reset();
    SUCCEEDS(sh_host_free(device.get(), memory));
}

// The search for a block's memory uses the plan in force, not the order that comes next.
TEST(ChangesOf, the_order_keep_a_prefetch_from_what_is_held) {
    SoloModel model({.budget_bytes = 5 * kPage}, equal_blocks(4, 4 * kPage), forward(4));
    SUCCEEDS(sh_plan(model.runtime(), nullptr, nullptr));
    model.begin_step();
    sh_view view = model.acquire(0);
    SUCCEEDS(model.schedule(forward(2)));
    const sh_block other = model.id(3);
    SUCCEEDS(sh_prefetch(model.runtime(), &other, 1));
    SUCCEEDS(sh_runtime_synchronize(model.runtime()));
    EXPECT_EQ(model.bytes().read(view.address, view.bytes), *model.truth(0));
    model.release(0);
    model.end_step();
}

TEST_P(Changes, are_written_beside_a_neighbour_that_is_held) {
    for (const uint64_t pages : {4, 40}) {  // in the ring, and in pages of their own
        SoloModel model({.budget_bytes = pages * kPage}, mutable_blocks(12, kPage / 2, GetParam()), forward(12),
                        {.max_held = 2});
        SUCCEEDS(model.step(forward(12)));
        model.acquire(0);
        ASSERT_NO_FATAL_FAILURE(change(model, 1, 1));
        const sh_block id = model.id(1);
        SUCCEEDS(sh_write_back(model.runtime(), &id, 1));
        EXPECT_EQ(model.source(1).read(), *model.truth(1)) << "in " << pages << " pages";
        // One that is held is not written, and its neighbour is all the same.
        SUCCEEDS(sh_mark_dirty(model.runtime(), model.id(0)));
        ASSERT_NO_FATAL_FAILURE(change(model, 1, 2));
        SUCCEEDS(sh_write_back(model.runtime(), &id, 1));
        EXPECT_EQ(model.source(1).read(), *model.truth(1));
        const sh_block held = model.id(0);
        EXPECT_EQ(sh_write_back(model.runtime(), &held, 1), SH_ERROR_INVALID_STATE);
        model.release(0);
    }
}

TEST_P(Changes, survive_that_a_neighbours_contents_are_void) {
    SoloModel model(slow_link(8), mutable_blocks(24, kPage - 100, GetParam()), forward(24));
    for (uint64_t round = 1; round < 4; round++) {
        model.begin_step();
        for (size_t i = 0; i + 1 < 24; i += 2) {
            ASSERT_NO_FATAL_FAILURE(change(model, i + 1, round));  // this begins its write-back
            model.invalidate(i);
            SUCCEEDS(model.use((i + 12) % 24));  // other contents take its pages
            const sh_block id = model.id(i + 1);
            SUCCEEDS(sh_write_back(model.runtime(), &id, 1));
            EXPECT_EQ(model.source(i + 1).read(), *model.truth(i + 1)) << "block " << i + 1 << ", round " << round;
        }
        model.end_step();
    }
}

TEST_P(Changes, are_written_before_a_block_is_gone) {
    SoloModel model(slow_link(6), mutable_blocks(3, 4 * kPage, GetParam(), SH_BLOCK_WHOLE), forward(3));
    model.begin_step();
    ASSERT_NO_FATAL_FAILURE(change(model, 0, 1));  // this begins its write-back
    model.end_step();
    const sh_block id = model.id(0);
    SUCCEEDS(sh_unregister_blocks(model.runtime(), &id, 1));
    EXPECT_EQ(model.source(0).read(), *model.truth(0));
    // Nothing is written to it afterwards.
    const std::vector<uint8_t> other(4 * kPage, 0x11);
    model.source(0).write(other);
    SUCCEEDS(sh_runtime_synchronize(model.runtime()));
    EXPECT_EQ(model.source(0).read(), other);
}

// The begin of a source update waits. The update must not lose the engine's changes of that time.
TEST_P(Changes, are_not_lost_to_an_update_that_begins) {
    SoloModel model(slow_link(40), mutable_blocks(4, 4 * kPage, GetParam()), forward(4));
    SUCCEEDS(model.step(forward(4)));
    for (size_t i = 0; i < 3; i++) ASSERT_NO_FATAL_FAILURE(change(model, i, 1));
    std::atomic<bool> begun{false};
    std::thread engine([&] {  // changes the last of them while it may
        for (uint64_t version = 2; !begun; version++) {
            auto view = sh_sized<sh_view>();
            if (sh_acquire(model.runtime(), model.id(3), SH_STREAM_HOST, 0, &view) != SH_OK) continue;
            if (sh_mark_dirty(model.runtime(), model.id(3)) == SH_OK) {
                EXPECT_SUCCEEDS(model.bytes().write(SH_STREAM_HOST, view.address, contents_of(3, version, view.bytes)));
                model.set_truth(3, contents_of(3, version, view.bytes));
            }
            EXPECT_SUCCEEDS(sh_release(model.runtime(), model.id(3), SH_STREAM_HOST));
        }
    });
    sh_status status = SH_ERROR_INVALID_STATE;  // while the engine holds dirty blocks
    while (status == SH_ERROR_INVALID_STATE) status = sh_source_update_begin(model.runtime(), model.ids().data(), 4);
    begun = true;
    engine.join();
    SUCCEEDS(status);
    for (size_t i = 0; i < 4; i++) EXPECT_EQ(model.source(i).read(), *model.truth(i)) << "block " << i;
    SUCCEEDS(sh_source_update_end(model.runtime(), model.ids().data(), 4));
    SUCCEEDS(model.step(forward(4)));
}

INSTANTIATE_TEST_SUITE_P(Sources, Changes, testing::Values(Origin::pinned, Origin::pageable),
                         [](const auto& info) { return name_of(info.param); });

}  // namespace
}  // namespace stagehand::test
