// Time of the host backend. Events use model time if a bandwidth is set. Model time is exact, whatever the machine does
// meanwhile.
#include <gtest/gtest.h>

#include <atomic>
#include <thread>
#include <vector>

#include "host/host_backend.h"
#include "page.h"

namespace stagehand::host {
namespace {

constexpr int64_t kMs = 1000000;

class HostPacing : public testing::Test {
protected:
    void SetUp() override { open("capacity=64MiB;bandwidth=1e9;latency=100us"); }  // a byte a nanosecond
    void TearDown() override { close(); }

    void close() {
        if (device_) backend_.device_close(device_);
        device_ = nullptr;
    }
    void open(const char* options) {
        close();
        sh_backend_device_info info = {};
        ASSERT_EQ(backend_.device_open(0, options, &device_, &info), SH_OK) << backend_.last_error();
        std::vector<sh_backend_page> pages(kBytes / kPage);
        ASSERT_EQ(backend_.pages_create(device_, kPage, pages.size(), pages.data()), SH_OK);
        ASSERT_EQ(backend_.range_reserve(device_, kBytes, kPage, &memory_), SH_OK);
        ASSERT_EQ(backend_.pages_map(device_, memory_, kPage, pages.size(), pages.data()), SH_OK);
    }
    sh_stream stream() {
        sh_stream stream = 0;
        EXPECT_EQ(backend_.stream_create(device_, &stream), SH_OK);
        return stream;
    }
    sh_backend_event event() {
        sh_backend_event event = 0;
        EXPECT_EQ(backend_.event_create(device_, 1, &event), SH_OK);
        return event;
    }
    void record(sh_backend_event event, sh_stream stream) {
        EXPECT_EQ(backend_.event_record(device_, event, stream), SH_OK);
    }
    void wait(sh_stream stream, sh_backend_event event) {
        EXPECT_EQ(backend_.stream_wait_event(device_, stream, event), SH_OK);
    }
    void busy(sh_stream stream, int64_t ns) {
        EXPECT_EQ(backend_.stream_launch(device_, stream, nullptr, nullptr, ns), SH_OK);
    }
    // Streams that run at the same time use different parts.
    void up(sh_stream stream, uint64_t bytes, int part = 0) {
        EXPECT_EQ(backend_.copy_to_device(device_, stream, memory_ + part * kPart, host_.data() + part * kPart, bytes),
                  SH_OK);
    }
    int64_t elapsed(sh_backend_event begin, sh_backend_event end) {
        EXPECT_EQ(backend_.event_synchronize(device_, begin), SH_OK);
        EXPECT_EQ(backend_.event_synchronize(device_, end), SH_OK);
        int64_t ns = -1;
        EXPECT_EQ(backend_.event_elapsed(device_, begin, end, &ns), SH_OK) << backend_.last_error();
        return ns;
    }
    // Returns an event that happens late: all work behind it has been issued by then.
    sh_backend_event later() {
        const sh_stream pause = stream();
        const sh_backend_event go = event();
        busy(pause, 300 * kMs);
        record(go, pause);
        return go;
    }

    static constexpr uint64_t kPart = 256 * kPage, kBytes = 2 * kPart;
    const sh_backend& backend_ = *host_backend();
    sh_backend_device* device_ = nullptr;
    uint64_t memory_ = 0;
    std::vector<char> host_ = std::vector<char>(kBytes);
};

TEST_F(HostPacing, ACopyTakesItsLatencyAndItsBytes) {
    const sh_stream s = stream();
    const sh_backend_event begin = event(), end = event();
    wait(s, later());
    record(begin, s);
    for (int i = 0; i < 10; ++i) up(s, 400000);
    record(end, s);
    EXPECT_EQ(elapsed(begin, end), 10 * 500000) << "delays of the thread must not add up";
}

TEST_F(HostPacing, WaitsCarryTheTimeOfTheEvent) {
    const sh_stream a = stream(), b = stream();
    const sh_backend_event begin = event(), half = event(), end = event();
    wait(a, later());
    record(begin, a);
    busy(a, 7 * kMs);
    record(half, a);
    wait(b, half);
    busy(b, 5 * kMs);
    record(end, b);
    EXPECT_EQ(elapsed(begin, end), 12 * kMs);
}

TEST_F(HostPacing, RandomDelaysDoNotChangeTheOrder) {
    open("capacity=64MiB;jitter_us=300;jitter_seed=3");
    const sh_stream s = stream();
    std::vector<int> order;
    struct Step {
        std::vector<int>* order;
        int number;
    };
    std::vector<Step> steps;
    for (int i = 0; i < 30; ++i) steps.push_back({&order, i});
    for (Step& step : steps) {
        const auto note = [](void* data) {
            static_cast<Step*>(data)->order->push_back(static_cast<Step*>(data)->number);
        };
        ASSERT_EQ(backend_.stream_launch(device_, s, note, &step, 0), SH_OK);
    }
    ASSERT_EQ(backend_.stream_synchronize(device_, s), SH_OK);
    ASSERT_EQ(order.size(), 30u);
    for (int i = 0; i < 30; ++i) EXPECT_EQ(order[static_cast<size_t>(i)], i);
}

TEST_F(HostPacing, AFunctionCannotDestroyItsStream) {
    struct Attempt {
        const sh_backend* backend;
        sh_backend_device* device;
        sh_stream stream;
        std::atomic<sh_status> status{1};
    } attempt;
    attempt.backend = &backend_;
    attempt.device = device_;
    attempt.stream = stream();
    const auto destroy = [](void* data) {
        Attempt& a = *static_cast<Attempt*>(data);
        a.status = a.backend->stream_destroy(a.device, a.stream);
    };
    ASSERT_EQ(backend_.stream_launch(device_, attempt.stream, destroy, &attempt, -1), SH_OK);
    ASSERT_EQ(backend_.stream_synchronize(device_, attempt.stream), SH_OK);
    EXPECT_EQ(attempt.status, SH_ERROR_INVALID_STATE);
    EXPECT_EQ(backend_.stream_destroy(device_, attempt.stream), SH_OK);
}

TEST_F(HostPacing, ClosingEndsStreamsThatWaitForEachOther) {
    const sh_stream a = stream(), b = stream();
    const sh_backend_event one = event(), two = event();
    for (int i = 0; i < 20; ++i) {
        busy(a, 10000);
        record(one, a);
        wait(b, one);
        record(two, b);
        wait(a, two);
    }
    const size_t before = all_memory_statistics().size();
    close();
    EXPECT_EQ(all_memory_statistics().size(), before - 1);
}

}  // namespace
}  // namespace stagehand::host
