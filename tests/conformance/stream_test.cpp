// Streams: the order within one stream, independence of several streams, functions and time.
#include <atomic>
#include <future>
#include <thread>

#include "instantiate.h"

namespace conformance {
namespace {

class StreamTest : public Conformance {
protected:
    // Returns false if the backend cannot run functions in streams.
    bool launch(sh_stream stream, void (*fn)(void*), void* user_data, int64_t busy_ns = -1) {
        const sh_status status = backend().stream_launch(device(), stream, fn, user_data, busy_ns);
        if (status != SH_ERROR_UNSUPPORTED) {
            SH_EXPECT_OK(status);
        }
        return status >= 0;
    }
};

struct Step {
    std::vector<int>* order;
    int number;
};

TEST_P(StreamTest, FunctionsRunInOrder) {
    const sh_stream stream = new_stream();
    std::vector<int> order;
    std::vector<Step> steps;
    for (int i = 0; i < 50; ++i) steps.push_back({&order, i});
    for (Step& step : steps) {
        const auto run = [](void* data) {
            static_cast<Step*>(data)->order->push_back(static_cast<Step*>(data)->number);
        };
        if (!launch(stream, run, &step)) GTEST_SKIP() << "this backend runs no host functions in streams";
    }
    SH_OK_OR_END(backend().stream_synchronize(device(), stream));
    ASSERT_EQ(order.size(), steps.size());
    for (int i = 0; i < 50; ++i) EXPECT_EQ(order[i], i);
}

TEST_P(StreamTest, AFunctionComesAfterTheCopiesBeforeIt) {
    if (!has_contents()) GTEST_SKIP() << "this device has no contents";
    const Memory memory = new_memory(4 * page());
    const sh_stream stream = new_stream();
    struct Check {
        std::vector<uint8_t> expected, there;
        std::atomic<int> equal{-1};
    } check;
    check.expected = pattern(memory.bytes, 1);
    check.there.resize(memory.bytes);
    SH_OK_OR_END(backend().copy_to_device(device(), stream, memory.address, check.expected.data(), memory.bytes));
    SH_OK_OR_END(backend().copy_to_host(device(), stream, check.there.data(), memory.address, memory.bytes));
    const auto compare = [](void* data) {
        static_cast<Check*>(data)->equal = static_cast<Check*>(data)->there == static_cast<Check*>(data)->expected;
    };
    if (!launch(stream, compare, &check)) GTEST_SKIP() << "this backend runs no host functions in streams";
    SH_OK_OR_END(backend().stream_synchronize(device(), stream));
    EXPECT_EQ(check.equal, 1);
}

TEST_P(StreamTest, SynchronizeWaitsForAllThatWasQueued) {
    const Memory memory = new_memory(page());
    const sh_stream stream = new_stream();
    const sh_backend_event last = new_event();
    for (int i = 0; i < 200; ++i)
        SH_OK_OR_END(backend().fill(device(), stream, memory.address, static_cast<uint8_t>(i), page()));
    SH_OK_OR_END(backend().event_record(device(), last, stream));
    SH_OK_OR_END(backend().stream_synchronize(device(), stream));
    EXPECT_TRUE(is_done(last));
    expect_contents(memory.address, std::vector<uint8_t>(page(), 199));
}

TEST_P(StreamTest, DeviceSynchronizeWaitsForEveryStream) {
    if (!backend().device_synchronize) GTEST_SKIP() << "this backend has no device_synchronize";
    const Memory memory = new_memory(4 * page());
    std::vector<sh_backend_event> last;
    for (uint64_t i = 0; i < 4; ++i) {
        const sh_stream stream = new_stream();
        last.push_back(new_event());
        for (int k = 0; k < 100; ++k)
            SH_OK_OR_END(
                backend().fill(device(), stream, memory.address + i * page(), static_cast<uint8_t>(k), page()));
        SH_OK_OR_END(backend().event_record(device(), last.back(), stream));
    }
    SH_OK_OR_END(backend().device_synchronize(device()));
    for (const sh_backend_event event : last) EXPECT_TRUE(is_done(event));
    expect_contents(memory.address, std::vector<uint8_t>(4 * page(), 99));
}

TEST_P(StreamTest, BusyTimeKeepsTheStreamBusy) {
    const sh_stream stream = new_stream();
    const sh_backend_event begin = new_event(true), end = new_event(true);
    std::atomic<int> calls{0};
    SH_OK_OR_END(backend().event_record(device(), begin, stream));
    const auto count = [](void* calls) { ++*static_cast<std::atomic<int>*>(calls); };
    if (!launch(stream, count, &calls, quirks().time_unit_ns))
        GTEST_SKIP() << "this backend runs no host functions in streams";
    launch(stream, nullptr, nullptr, 2 * quirks().time_unit_ns);
    SH_OK_OR_END(backend().event_record(device(), end, stream));
    SH_OK_OR_END(backend().stream_synchronize(device(), stream));
    EXPECT_EQ(calls, 1);
    int64_t elapsed = 0;
    SH_OK_OR_END(backend().event_elapsed(device(), begin, end, &elapsed));
    EXPECT_GE(elapsed, 3 * quirks().time_unit_ns);
}

TEST_P(StreamTest, CopiesRunBesideCompute) {
    const Memory memory = new_memory(64 * page());
    const sh_stream compute = new_stream(), copies = new_stream();
    const sh_backend_event copied = new_event(true), computed = new_event(true);
    SH_PINNED(data, pattern(memory.bytes, 2));
    SH_HOLD(hold, compute);
    SH_OK_OR_END(backend().event_record(device(), computed, compute));
    for (int i = 0; i < 5; ++i) {
        SH_OK_OR_END(backend().copy_to_device(device(), copies, memory.address, data.data(), memory.bytes));
    }
    SH_OK_OR_END(backend().event_record(device(), copied, copies));
    SH_OK_OR_END(backend().event_synchronize(device(), copied));
    EXPECT_TRUE(is_done(copied));
    EXPECT_FALSE(is_done(computed));
    hold.release();
    SH_OK_OR_END(backend().event_synchronize(device(), computed));
    EXPECT_TRUE(is_done(computed));
    expect_contents(memory.address, data.bytes());
    if (!has(SH_BACKEND_VIRTUAL_TIME)) return;  // elsewhere a hold is a wait, and takes no time of its own
    int64_t lead = 0;
    SH_OK_OR_END(backend().event_elapsed(device(), copied, computed, &lead));
    EXPECT_GT(lead, 0);
}

TEST_P(StreamTest, BothDirectionsRunAtOnce) {
    const Memory up = new_memory(16 * page()), down = new_memory(16 * page());
    const sh_stream held = new_stream(), to_host = new_stream();
    const sh_backend_event queued = new_event(), read = new_event();
    const auto other = pattern(down.bytes, 4);
    SH_PINNED(data, pattern(up.bytes, 3));
    SH_PINNED(host, std::vector<uint8_t>(down.bytes));
    write(down.address, other);
    SH_HOLD(hold, held);
    SH_OK_OR_END(backend().copy_to_device(device(), held, up.address, data.data(), up.bytes));
    SH_OK_OR_END(backend().event_record(device(), queued, held));
    SH_OK_OR_END(backend().copy_to_host(device(), to_host, host.data(), down.address, down.bytes));
    SH_OK_OR_END(backend().event_record(device(), read, to_host));
    SH_OK_OR_END(backend().event_synchronize(device(), read));
    EXPECT_FALSE(is_done(queued));
    hold.release();
    SH_OK_OR_END(backend().event_synchronize(device(), queued));
    if (has_contents()) {
        EXPECT_EQ(host.bytes(), other);
    }
    expect_contents(up.address, data.bytes());
}

TEST_P(StreamTest, ManyStreamsComeAndGo) {
    const Memory memory = new_memory(page());
    for (int round = 0; round < 20; ++round) {
        sh_stream streams[8];
        for (sh_stream& stream : streams) {
            SH_OK_OR_END(backend().stream_create(device(), &stream));
            EXPECT_NE(stream, SH_STREAM_HOST);
            SH_OK_OR_END(backend().fill(device(), stream, memory.address + (&stream - streams) * 8,
                                        static_cast<uint8_t>(round), 8));
        }
        for (const sh_stream stream : streams) {
            SH_OK_OR_END(backend().stream_synchronize(device(), stream));
            SH_OK_OR_END(backend().stream_destroy(device(), stream));
        }
    }
    expect_contents(memory.address, std::vector<uint8_t>(64, 19));
}

// All threads use one handle, but work of one thread does not delay another thread. Events order the threads like any
// two streams.
TEST_P(StreamTest, EachThreadHasADefaultStreamOfItsOwn) {
    const sh_stream own = info().thread_stream;
    if (!own) GTEST_SKIP() << "this device has no such stream";
    const Memory memory = new_memory(page());
    const sh_backend_event theirs = new_event(), ours = new_event();
    std::atomic<bool> go_on{false}, may_end{false};
    std::promise<void> queued;
    std::thread other([&] {
        const auto wait = [](void* flag) {
            while (!*static_cast<std::atomic<bool>*>(flag)) std::this_thread::sleep_for(std::chrono::milliseconds(1));
        };
        EXPECT_EQ(backend().stream_launch(device(), own, wait, &go_on, 0), SH_OK);
        EXPECT_EQ(backend().fill(device(), own, memory.address, 1, page()), SH_OK);
        EXPECT_EQ(backend().event_record(device(), theirs, own), SH_OK);
        queued.set_value();
        while (!may_end) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    });
    queued.get_future().wait();
    EXPECT_EQ(backend().event_record(device(), ours, own), SH_OK);
    EXPECT_EQ(backend().stream_synchronize(device(), own), SH_OK);  // does not wait for the other thread's
    uint32_t done = 1;
    EXPECT_EQ(backend().event_query(device(), theirs, &done), SH_OK);
    EXPECT_EQ(done, 0u);
    EXPECT_EQ(backend().stream_wait_event(device(), own, theirs), SH_OK);
    EXPECT_EQ(backend().fill(device(), own, memory.address, 2, page() / 2), SH_OK);
    go_on = true;
    EXPECT_EQ(backend().stream_synchronize(device(), own), SH_OK);
    std::vector<uint8_t> expected(page(), 1);
    std::fill_n(expected.begin(), page() / 2, uint8_t(2));
    expect_contents(memory.address, expected);
    may_end = true;
    other.join();
}

TEST_P(StreamTest, StreamsThatAreNoneAreErrors) {
    if (!quirks().checks_handles) GTEST_SKIP() << "drivers do not check this";
    const Memory memory = new_memory(page());
    const sh_backend_event event = new_event();
    sh_stream stale = 0;
    SH_OK_OR_END(backend().stream_create(device(), &stale));
    SH_OK_OR_END(backend().stream_destroy(device(), stale));
    std::vector<uint8_t> host(page());
    for (const sh_stream bad : {stale, sh_stream(0), sh_stream(SH_STREAM_HOST), sh_stream(77), sh_stream(event)}) {
        EXPECT_EQ(backend().stream_synchronize(device(), bad), SH_ERROR_INVALID_HANDLE);
        EXPECT_EQ(backend().stream_destroy(device(), bad), SH_ERROR_INVALID_HANDLE);
        EXPECT_EQ(backend().stream_launch(device(), bad, nullptr, nullptr, 0), SH_ERROR_INVALID_HANDLE);
        EXPECT_EQ(backend().stream_wait_event(device(), bad, event), SH_ERROR_INVALID_HANDLE);
        EXPECT_EQ(backend().event_record(device(), event, bad), SH_ERROR_INVALID_HANDLE);
        EXPECT_EQ(backend().copy_to_device(device(), bad, memory.address, host.data(), page()),
                  SH_ERROR_INVALID_HANDLE);
        EXPECT_EQ(backend().copy_to_host(device(), bad, host.data(), memory.address, page()), SH_ERROR_INVALID_HANDLE);
        EXPECT_EQ(backend().fill(device(), bad, memory.address, 1, page()), SH_ERROR_INVALID_HANDLE);
        EXPECT_STRNE(backend().last_error(), "");
    }
}

SH_ON_EVERY_BACKEND(StreamTest);

}  // namespace
}  // namespace conformance
