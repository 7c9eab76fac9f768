// Thousands of random operations from several threads, with random delays on the device. Every byte is right, and every
// load ends exactly once.
#include <array>
#include <thread>

#include "../count_allocations.h"
#include "staging_fixture.h"

namespace stagehand::transfer {
namespace {

using test::random_bytes;
using test::TestLoad;
using test::TestStore;

class StagingStress : public test::StagingTest {};

// One thread's part: a region of the device and streams of its own, and one operation after the other.
struct Actor {
    StagingEngine& engine;
    BackendDevice& device;
    const std::vector<char>& pattern;
    const Source* sources;  // four kinds, all of the pattern
    std::vector<char> region = std::vector<char>(150000);
    std::vector<char> host = std::vector<char>(150000);
    sh_stream up = 0, down = 0;
    sh_backend_event used = 0, read = 0;
    std::mt19937 random = {};
    int cancelled = 0, done = 0;

    void build(TestLoad& load, std::vector<char>& expected) {
        load.load.extents.clear();
        load.load.waits = {used, read};
        load.load.stream = up;
        load.load.deadline_ns = random() % 100;
        for (uint64_t at = random() % 100;;) {
            const uint64_t length = random() % (1u << random() % 17), from = random() % 100000;
            if (at + length > region.size()) break;
            load.load.extents.push_back(
                {&sources[random() % 4], from, reinterpret_cast<uint64_t>(region.data()) + at, length, 0, 2});
            std::memcpy(expected.data() + at, pattern.data() + from, length);
            at += length + (random() % 3 ? 0 : random() % 5000);
        }
    }

    void load_once() {
        std::fill(region.begin(), region.end(), 0);
        std::vector<char> expected(region.size());
        TestLoad load;
        build(load, expected);
        ASSERT_TRUE(engine.submit(load.load).ok());
        const uint32_t what = random() % 6;
        if (what == 0) engine.hurry(load.load, 0);
        if (what == 1) std::this_thread::yield();
        if (what <= 2 && engine.cancel(load.load)) {
            ASSERT_EQ(load.outcome.times(), 0);
            cancelled++;
            return;
        }
        const Status status = load.outcome.wait();
        ASSERT_TRUE(device.stream_synchronize(up).ok());
        ASSERT_EQ(load.outcome.times(), 1);
        if (status.code() == SH_ERROR_CANCELLED) {
            ASSERT_LE(what, 2u);
            cancelled++;
            return;
        }
        ASSERT_TRUE(status.ok()) << status.text();
        ASSERT_TRUE(region == expected);
        done++;
    }

    void store_once() {
        for (char& byte : region) byte = static_cast<char>(random());
        std::fill(host.begin(), host.end(), 0);
        TestStore store;
        store.store.stream = down;
        store.store.deadline_ns = random() % 100;
        store.store.waits = {used};
        store.store.read = read;
        const uint64_t split = random() % region.size();
        const uint64_t base = reinterpret_cast<uint64_t>(region.data());
        store.store.extents = {{host.data(), base, split}, {host.data() + split, base + split, region.size() - split}};
        ASSERT_TRUE(engine.submit(store.store).ok());
        ASSERT_TRUE(store.outcome.wait().ok());
        ASSERT_EQ(store.reads, 1);
        ASSERT_TRUE(host == region);
    }

    void run(int operations) {
        for (int i = 0; i < operations && !testing::Test::HasFatalFailure(); i++) {
            if (random() % 5 == 0)
                store_once();
            else
                load_once();
            ASSERT_TRUE(device.event_record(used, up).ok());
        }
    }
};

TEST_F(StagingStress, ManyThreadsManyStreams) {
    const auto pattern = random_bytes(700000, 3);
    test::TemporaryFile file(700000, 3);
    test::Mapping mapping(file.descriptor(), 700000);
    std::array<Source, 4> kinds;
    kinds[0] = kinds[1] = memory_source(pattern);
    kinds[1].kind = SH_SOURCE_MAPPED;
    kinds[1].pointer = mapping.data();
    sh_segment segment = SH_SEGMENT_INIT;
    segment.kind = SH_SOURCE_FILE;
    segment.file = file.descriptor();
    segment.bytes = 700000;
    ASSERT_TRUE(open_source(segment, &kinds[2]).ok());
    kinds[3] = fill_source(
        [](void* buffer, uint64_t offset, uint64_t bytes, void* from) {
            std::memcpy(buffer, static_cast<const char*>(from) + offset, bytes);
            return int32_t(0);
        },
        const_cast<char*>(pattern.data()), 700000);

    for (const uint32_t delay : {0u, 200u}) {
        fake_.delay_us = delay;
        make_engine(3, 5 * (16 << 10));
        std::list<Actor> actors;
        for (uint32_t i = 0; i < 4; i++) {
            Actor& actor = actors.emplace_back(Actor{*engine_, *device_, pattern, kinds.data()});
            actor.random.seed(i + 100 * delay);
            ASSERT_TRUE(device_->stream_create(&actor.up).ok());
            ASSERT_TRUE(device_->stream_create(&actor.down).ok());
            actor.used = make_event();
            actor.read = make_event();
        }
        std::vector<std::thread> threads;
        for (Actor& actor : actors) threads.emplace_back([&actor, delay] { actor.run(delay ? 50 : 700); });
        for (std::thread& thread : threads) thread.join();
        int done = 0, cancelled = 0;
        for (Actor& actor : actors) {
            done += actor.done;
            cancelled += actor.cancelled;
        }
        EXPECT_GT(done, 0);
        EXPECT_GT(cancelled, 0);
        engine_.reset();
    }
    close_source(&kinds[2]);
}

// Nothing is allocated after the first loads. The device does nothing, so it allocates nothing either.
TEST_F(StagingStress, ASteadyStateAllocatesNothing) {
    static sh_backend table;
    table = device_->table();
    table.stream_wait_event = [](sh_backend_device*, sh_stream, sh_backend_event) { return sh_status(SH_OK); };
    table.event_record = [](sh_backend_device*, sh_backend_event, sh_stream) { return sh_status(SH_OK); };
    table.event_query = [](sh_backend_device*, sh_backend_event, uint32_t* done) {
        return *done = 1, sh_status(SH_OK);
    };
    table.copy_to_device = [](sh_backend_device*, sh_stream, uint64_t, const void*, uint64_t) {
        return sh_status(SH_OK);
    };
    table.copy_to_host = [](sh_backend_device*, sh_stream, void*, uint64_t, uint64_t) { return sh_status(SH_OK); };
    table.host_is_pinned = [](sh_backend_device*, const void*, uint64_t, uint32_t* pinned) {
        return *pinned = 0, sh_status(SH_OK);
    };
    BackendDevice quiet(table, reinterpret_cast<sh_backend_device*>(&fake_), device_->info());

    const auto bytes = random_bytes(2 << 20, 1);
    make_memory(bytes.size());
    std::vector<char> host(2 << 20);
    {
        StagingEngine engine(quiet, {.bytes = 8 << 16, .threads = 2});
        std::array<TestLoad, 8> loads;
        std::array<TestStore, 2> stores;
        for (TestLoad& load : loads) {
            aim(load, memory_source(bytes), 0);
            load.load.waits = {1, 2, 3};
            load.load.extents[0].waits.count = 3;
        }
        for (size_t i = 0; i < 2; i++) stores[i].store.extents = {{host.data() + (i << 20), address(0), 1 << 20}};
        const auto round = [&] {
            for (TestLoad& load : loads) EXPECT_TRUE(engine.submit(load.load).ok());
            for (TestStore& store : stores) EXPECT_TRUE(engine.submit(store.store).ok());
            for (TestLoad& load : loads) EXPECT_TRUE(load.outcome.wait().ok());
            for (TestStore& store : stores) EXPECT_TRUE(store.outcome.wait().ok());
            for (TestLoad& load : loads) load.outcome.reset();
            for (TestStore& store : stores) store.outcome.reset();
        };
        for (int i = 0; i < 50; i++) round();  // every slot and every worker has had its turn
        stagehand::test::allocations = 0;
        stagehand::test::count_allocations = true;
        for (int i = 0; i < 50; i++) round();
        stagehand::test::count_allocations = false;
        EXPECT_EQ(stagehand::test::allocations, 0u);
    }
}

}  // namespace
}  // namespace stagehand::transfer
