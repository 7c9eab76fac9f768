// Threads: several threads call every function at once.
#include <thread>

#include "instantiate.h"

namespace conformance {
namespace {

class ThreadsTest : public Conformance {
protected:
    void in_threads(int count, const std::function<void(int)>& run) {
        std::vector<std::thread> threads;
        for (int i = 0; i < count; ++i) {
            threads.emplace_back([this, i, &run] {
                if (backend().thread_begin) {
                    SH_EXPECT_OK(backend().thread_begin(device()));
                }
                run(i);
            });
        }
        for (std::thread& thread : threads) thread.join();
    }
};

TEST_P(ThreadsTest, EachWithItsOwnObjects) {
    in_threads(4, [&](int number) {
        for (int round = 0; round < 10; ++round) {
            const Memory memory = new_memory(3 * page());
            const sh_stream stream = new_stream();
            const sh_backend_event event = new_event();
            const auto data = pattern(memory.bytes, static_cast<uint64_t>(number * 100 + round));
            std::vector<uint8_t> there(memory.bytes);
            SH_OK_OR_END(backend().copy_to_device(device(), stream, memory.address, data.data(), memory.bytes));
            SH_OK_OR_END(backend().copy_to_host(device(), stream, there.data(), memory.address, memory.bytes));
            SH_OK_OR_END(backend().event_record(device(), event, stream));
            SH_OK_OR_END(backend().event_synchronize(device(), event));
            if (has_contents()) {
                EXPECT_EQ(there, data);
            }
        }
    });
}

TEST_P(ThreadsTest, MappingBesideCopying) {
    if (!has(SH_BACKEND_FIXED_ADDRESSES)) GTEST_SKIP() << "this device does not map memory by pages";
    const Memory memory = new_memory(8 * page());
    in_threads(4, [&](int number) {
        const auto pages = new_pages(4);
        const uint64_t range = new_range(4 * page());
        const sh_stream stream = new_stream();
        for (int round = 0; round < 20; ++round) {
            SH_OK_OR_END(backend().pages_map(device(), range, page(), 4, pages.data()));
            SH_OK_OR_END(backend().fill(device(), stream, range, static_cast<uint8_t>(round), 4 * page()));
            SH_OK_OR_END(
                backend().copy_on_device(device(), stream, memory.address + number * 2 * page(), range, 2 * page()));
            SH_OK_OR_END(backend().stream_synchronize(device(), stream));
            SH_OK_OR_END(backend().pages_unmap(device(), range, page(), 4));
        }
    });
    expect_contents(memory.address, std::vector<uint8_t>(memory.bytes, 19));
}

TEST_P(ThreadsTest, OneStreamForAll) {
    const int threads = 4, each = 50;
    const Memory memory = new_memory(page());
    const sh_stream stream = new_stream();
    in_threads(threads, [&](int number) {
        const sh_backend_event event = new_event();
        for (int round = 0; round < each; ++round) {
            const uint64_t at = memory.address + static_cast<uint64_t>(number) * 16;
            SH_OK_OR_END(backend().fill(device(), stream, at, static_cast<uint8_t>(round + 1), 16));
            SH_OK_OR_END(backend().event_record(device(), event, stream));
            SH_OK_OR_END(backend().stream_wait_event(device(), stream, event));
            if (round % 10 == 0) {
                SH_OK_OR_END(backend().event_synchronize(device(), event));
            }
        }
    });
    SH_OK_OR_END(backend().stream_synchronize(device(), stream));
    expect_contents(memory.address, std::vector<uint8_t>(threads * 16, each));
}

TEST_P(ThreadsTest, OneEventForAll) {
    const sh_stream streams[] = {new_stream(), new_stream()};
    const sh_backend_event event = new_event();
    in_threads(4, [&](int number) {
        for (int round = 0; round < 100; ++round) {
            if (number < 2) {
                SH_OK_OR_END(backend().event_record(device(), event, streams[number]));
            } else {
                SH_OK_OR_END(backend().stream_wait_event(device(), streams[number - 2], event));
                is_done(event);
            }
        }
    });
    for (const sh_stream stream : streams) SH_OK_OR_END(backend().stream_synchronize(device(), stream));
    EXPECT_TRUE(is_done(event));
}

TEST_P(ThreadsTest, PinningAndCounting) {
    std::vector<std::vector<uint8_t>> memory(4, std::vector<uint8_t>(1 << 20));
    in_threads(4, [&](int number) {
        for (int round = 0; round < 20; ++round) {
            uint8_t* const at = memory[static_cast<size_t>(number)].data() + 8192;
            SH_OK_OR_END(backend().host_register(device(), at, 1 << 19));
            uint32_t pinned = 0;
            SH_OK_OR_END(backend().host_is_pinned(device(), at, 1 << 19, &pinned));
            EXPECT_EQ(pinned, 1u);
            SH_OK_OR_END(backend().host_unregister(device(), at));
            free_bytes();
        }
    });
}

SH_ON_EVERY_BACKEND(ThreadsTest);

}  // namespace
}  // namespace conformance
