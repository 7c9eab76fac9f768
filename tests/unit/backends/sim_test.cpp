// The sim backend: virtual time to the nanosecond, and many pages.
#include <gtest/gtest.h>

#include <cstring>
#include <numeric>
#include <string>
#include <vector>

#include "sim/sim_backend.h"

namespace stagehand::sim {
namespace {

class Sim : public testing::Test {
protected:
    void SetUp() override { open("bandwidth=1e9;latency=10;granularity=4KiB;capacity=1GiB"); }
    void TearDown() override { backend_.device_close(device_); }

    void open(const char* options) {
        if (device_) backend_.device_close(device_);
        ASSERT_EQ(backend_.device_open(0, options, &device_, &info_), SH_OK) << backend_.last_error();
        std::vector<sh_backend_page> pages(16);
        const uint64_t page = info_.granularity_bytes;
        ASSERT_EQ(backend_.pages_create(device_, page, 16, pages.data()), SH_OK);
        ASSERT_EQ(backend_.range_reserve(device_, 16 * page, page, &memory_), SH_OK);
        ASSERT_EQ(backend_.pages_map(device_, memory_, page, 16, pages.data()), SH_OK);
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
    void up(sh_stream stream, uint64_t bytes) {
        EXPECT_EQ(backend_.copy_to_device(device_, stream, memory_, nullptr, bytes), SH_OK);
    }
    void busy(sh_stream stream, int64_t ns) {
        EXPECT_EQ(backend_.stream_launch(device_, stream, nullptr, nullptr, ns), SH_OK);
    }
    void record(sh_backend_event event, sh_stream stream) {
        EXPECT_EQ(backend_.event_record(device_, event, stream), SH_OK);
    }
    uint64_t now() { return backend_.clock(device_); }

    const sh_backend& backend_ = *sim_backend();
    sh_backend_device* device_ = nullptr;
    sh_backend_device_info info_ = {};
    uint64_t memory_ = 0;
};

TEST_F(Sim, TellsTheVersionOfTheLibrary) {
    const auto text = [](int number) { return std::to_string(number); };
    EXPECT_EQ(backend_.version, text(SH_VERSION_MAJOR) + "." + text(SH_VERSION_MINOR) + "." + text(SH_VERSION_PATCH));
}

TEST_F(Sim, TheClockMovesOnlyByWaiting) {
    const sh_stream s = stream();
    up(s, 5000);
    EXPECT_EQ(now(), 0u);
    ASSERT_EQ(backend_.stream_synchronize(device_, s), SH_OK);
    EXPECT_EQ(now(), 5010u);
    ASSERT_EQ(backend_.stream_synchronize(device_, s), SH_OK);
    EXPECT_EQ(now(), 5010u);
    busy(s, 90);
    const sh_backend_event done = event();
    record(done, s);
    ASSERT_EQ(backend_.event_synchronize(device_, done), SH_OK);
    EXPECT_EQ(now(), 5100u);
}

TEST_F(Sim, CallsCostTheHostWhatIsSet) {
    open("bandwidth=1e9;granularity=4KiB;call_ns=100");
    const sh_stream s = stream();
    up(s, 50);
    up(s, 50);
    EXPECT_EQ(now(), 200u);
    ASSERT_EQ(backend_.stream_synchronize(device_, s), SH_OK);
    EXPECT_EQ(now(), 250u) << "the second started when it was queued";
}

TEST_F(Sim, UnpackingTakesTimeByItsContents) {
    open("unpack_speed=2e9;latency=10;granularity=4KiB;capacity=1GiB");
    const sh_stream one = stream();
    sh_backend_packed packed = {};
    packed.struct_size = sizeof packed;
    packed.format = SH_BACKEND_FORMAT_BF16;
    packed.from = memory_;
    packed.to = memory_ + 16384;
    packed.elements = 8000;
    packed.chunks = 1;
    packed.places[1] = 700;
    const uint64_t before = backend_.clock(device_);
    ASSERT_EQ(backend_.unpack(device_, one, &packed), SH_OK) << backend_.last_error();
    ASSERT_EQ(backend_.stream_synchronize(device_, one), SH_OK);
    EXPECT_EQ(backend_.clock(device_) - before, 8010u);  // 16,000 bytes, and the latency
}

TEST_F(Sim, AFunctionMayUseTheDevice) {
    struct Use {
        const sh_backend* backend;
        sh_backend_device* device;
        uint64_t now = 99;
    } use{&backend_, device_};
    const auto ask = [](void* data) {
        Use& use = *static_cast<Use*>(data);
        use.now = use.backend->clock(use.device);
    };
    ASSERT_EQ(backend_.stream_launch(device_, stream(), ask, &use, 0), SH_OK);
    EXPECT_EQ(use.now, 0u);
}

TEST_F(Sim, BothDirectionsShareWhatTheDuplexFactorLeaves) {
    for (const auto& [options, expected] : {std::pair("bandwidth=1e9;granularity=4KiB", 1000u),
                                            std::pair("bandwidth=1e9;granularity=4KiB;duplex=1", 2000u)}) {
        open(options);
        const sh_stream a = stream(), b = stream();
        up(a, 1000);
        ASSERT_EQ(backend_.copy_to_host(device_, b, nullptr, memory_, 1000), SH_OK);
        ASSERT_EQ(backend_.stream_synchronize(device_, b), SH_OK);
        EXPECT_EQ(now(), expected) << options;
    }
}

TEST_F(Sim, OptionsAreReadAndChecked) {
    EXPECT_EQ(info_.total_bytes, 1u << 30);
    EXPECT_EQ(info_.link_bytes_per_second, 1000000000u);
    EXPECT_EQ(info_.copy_latency_ns, 10u);
    EXPECT_EQ(info_.flags, uint32_t(SH_BACKEND_FIXED_ADDRESSES | SH_BACKEND_CONTENTLESS | SH_BACKEND_VIRTUAL_TIME));
    sh_backend_device* other = nullptr;
    sh_backend_device_info defaults = {};
    ASSERT_EQ(backend_.device_open(0, nullptr, &other, &defaults), SH_OK);
    backend_.device_close(other);
    EXPECT_EQ(defaults.link_bytes_per_second, 55500000000u);
    EXPECT_EQ(defaults.granularity_bytes, 2u << 20);
    EXPECT_EQ(defaults.largest_page_bytes, 32u << 20);
    const char* const bad[][2] = {{"bandwidth=0", "bandwidth"},
                                  {"granularity=3", "granularity"},
                                  {"largest_page=5", "largest_page"},
                                  {"capacity=1", "capacity"},
                                  {"duplex=3", "duplex"},
                                  {"latency=x", "latency"},
                                  {"call_ns=x", "call_ns"},
                                  {"staging_piece=0", "staging_piece"},
                                  {"unpack_speed=0", "unpack_speed"},
                                  {"poison=1", "poison"}};
    for (const auto& [options, word] : bad) {
        EXPECT_EQ(backend_.device_open(0, options, &other, &defaults), SH_ERROR_INVALID_ARGUMENT) << options;
        EXPECT_NE(std::strstr(backend_.last_error(), word), nullptr) << options << ": " << backend_.last_error();
    }
}

}  // namespace
}  // namespace stagehand::sim
