// sh_runtime_stats.in_time counts the hits whose bytes were there. The tests run in virtual time, in which a copy ends
// when a caller has waited for it.
#include "engine.h"

namespace stagehand::test {
namespace {

DeviceSettings virtual_time() {
    DeviceSettings settings;
    settings.name = "sim";
    settings.options = "bandwidth=1GB/s;granularity=64KiB";
    settings.page_bytes = 64 << 10;
    settings.budget_bytes = 64 << 20;
    return settings;
}

class InTime : public testing::Test {
protected:
    // The increase of the counters by one call.
    struct Counted {
        uint64_t acquires, hits, in_time;
        bool operator==(const Counted&) const = default;
    };
    template <class Call>
    Counted counted(Call&& call) {
        const sh_runtime_stats before = model_.stats();
        call();
        const sh_runtime_stats after = model_.stats();
        return {after.acquires - before.acquires, after.hits - before.hits, after.in_time - before.in_time};
    }
    void acquire(std::vector<size_t> blocks, sh_stream stream) {
        std::vector<sh_block> ids;
        for (const size_t i : blocks) ids.push_back(model_.id(i));
        std::vector<sh_view> views(ids.size(), sh_sized<sh_view>());
        if (ids.size() == 1)
            SUCCEEDS(sh_acquire(model_.runtime(), ids[0], stream, 0, &views[0]));
        else
            SUCCEEDS(sh_acquire_many(model_.runtime(), ids.data(), ids.size(), stream, 0, views.data()));
        for (const sh_view& view : views) EXPECT_EQ(view.flags & ~0xfu, 0u) << "only flags of the interface";
        for (const sh_block id : ids) let_go(model_.runtime(), id, stream);
    }
    void prefetch(std::vector<size_t> blocks) {
        for (const size_t i : blocks) SUCCEEDS(sh_prefetch(model_.runtime(), &model_.ids()[i], 1));
    }

    TestDevice device_{virtual_time()};
    Model model_{device_, equal_blocks(8, 1 << 20, Origin::pinned, SH_BLOCK_UNORDERED)};
    const sh_stream stream_ = device_.stream();
};

TEST_F(InTime, counts_what_is_there_and_not_what_is_on_its_way) {
    const Counted miss = counted([&] { acquire({0}, stream_); });
    EXPECT_EQ(miss, (Counted{1, 0, 0}));
    const Counted on_its_way = counted([&] { acquire({0}, stream_); });
    EXPECT_EQ(on_its_way, (Counted{1, 1, 0})) << "the stream waits for it";
    SUCCEEDS(sh_stream_synchronize(device_.get(), stream_));
    for (const sh_stream stream : {stream_, sh_stream(SH_STREAM_HOST)}) {
        const Counted there = counted([&] { acquire({0}, stream); });
        EXPECT_EQ(there, (Counted{1, 1, 1}));
    }
    prefetch({1});
    const Counted waited = counted([&] { acquire({1}, SH_STREAM_HOST); });
    EXPECT_EQ(waited, (Counted{1, 1, 0})) << "the caller waits for it";
    const Counted then = counted([&] { acquire({1}, SH_STREAM_HOST); });
    EXPECT_EQ(then, (Counted{1, 1, 1}));
    EXPECT_LE(model_.stats().in_time, model_.stats().hits);
}

// Bytes that arrive while the call waits for another block are not in time. Bytes that were there before are.
TEST_F(InTime, counts_each_block_of_a_set) {
    acquire({0, 1}, SH_STREAM_HOST);
    prefetch({2, 3});
    const Counted set = counted([&] { acquire({0, 3, 2, 1, 4}, SH_STREAM_HOST); });
    EXPECT_EQ(set, (Counted{5, 4, 2}));
    const Counted again = counted([&] { acquire({0, 1, 2, 3, 4}, SH_STREAM_HOST); });
    EXPECT_EQ(again, (Counted{5, 5, 5}));
}

// The engine asked for the block before, and its bytes were not there then.
TEST_F(InTime, does_not_count_what_was_not_ready_at_first) {
    acquire({0}, SH_STREAM_HOST);
    prefetch({1});
    auto view = sh_sized<sh_view>();
    EXPECT_EQ(sh_acquire(model_.runtime(), model_.id(1), stream_, SH_ACQUIRE_NO_WAIT, &view), SH_OK)
        << "on a stream nobody waits on the host";
    model_.release(1, stream_);
    prefetch({2});
    EXPECT_EQ(sh_acquire(model_.runtime(), model_.id(2), SH_STREAM_HOST, SH_ACQUIRE_NO_WAIT, &view), SH_NOT_READY);
    SUCCEEDS(sh_runtime_synchronize(model_.runtime()));
    const Counted ready = counted([&] { acquire({2}, SH_STREAM_HOST); });
    EXPECT_EQ(ready, (Counted{1, 0, 0}));
}

// Nor does any block of a set count that was not ready at first.
TEST_F(InTime, does_not_count_a_set_that_was_not_ready_at_first) {
    acquire({0}, SH_STREAM_HOST);
    prefetch({1, 2, 3});
    const sh_block set[] = {model_.id(3), model_.id(1), model_.id(2)};
    sh_view views[3] = {sh_sized<sh_view>(), sh_sized<sh_view>(), sh_sized<sh_view>()};
    EXPECT_EQ(sh_acquire_many(model_.runtime(), set, 3, SH_STREAM_HOST, SH_ACQUIRE_NO_WAIT, views), SH_NOT_READY);
    SUCCEEDS(sh_runtime_synchronize(model_.runtime()));
    const Counted ready = counted([&] { acquire({3, 1, 2}, SH_STREAM_HOST); });
    EXPECT_EQ(ready, (Counted{3, 0, 0}));
    const Counted again = counted([&] { acquire({3, 1, 2}, SH_STREAM_HOST); });
    EXPECT_EQ(again, (Counted{3, 3, 3}));
}

// All resident blocks are in time, on the short path and on the long path.
TEST(InTimeOfResidents, is_each_use) {
    SoloModel model({}, equal_blocks(6, 4 * kPage), forward(6));
    for (int k = 0; k < 2; k++) SUCCEEDS(model.step(forward(6)));
    const sh_runtime_stats before = model.stats();
    for (int k = 0; k < 3; k++) SUCCEEDS(model.step(forward(6), k == 2 ? model.stream() : SH_STREAM_HOST));
    model.synchronize();
    EXPECT_EQ(model.stats().in_time - before.in_time, 18u);
    EXPECT_EQ(model.stats().hits - before.hits, 18u);
}

}  // namespace
}  // namespace stagehand::test
