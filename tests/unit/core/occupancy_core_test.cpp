// Memory of sh_alloc() on devices that the test makes itself: a backend that cannot wait for all work, and the
// questions that an allocation asks the budget.
#include <cstring>
#include <memory>
#include <span>
#include <string>

#include "core/device/device.h"
#include "core/occupancy/occupancy.h"
#include "occupancy_fixture.h"
#include "plugins/backends.h"

namespace stagehand::test {
namespace {

class OccupancyCore : public testing::Test {
protected:
    void SetUp() override {
        if (!on_host_backend()) GTEST_SKIP() << "the test needs a backend whose functions it can replace";
        std::string path;
        const sh_backend* host = nullptr;
        ASSERT_TRUE(plugins::find_backend("host", nullptr, &host, &path).ok());
        table_ = *host;
    }
    void open() {
        sh_backend_device* opened = nullptr;
        sh_backend_device_info info = {};
        info.struct_size = sizeof info;
        ASSERT_EQ(table_.device_open(0, devices_without_pages() ? "map_pages=0" : "", &opened, &info), SH_OK);
        core::DeviceOptions options;
        options.device.budget_bytes = 4 * kMiB;
        device_ = std::make_shared<core::Device>("host", 0, std::make_unique<BackendDevice>(table_, opened, info),
                                                 options, kPage);
        ASSERT_TRUE(device_->arbiter().set_total(4 * kMiB / kPage).ok());
        device_->limit_pool();
        occupancy_ = std::make_unique<core::Occupancy>(device_);
    }

    sh_backend table_ = {};
    std::shared_ptr<core::Device> device_;
    std::unique_ptr<core::Occupancy> occupancy_;
};

// The work that stands for the engine's never ends by itself. So the test would hang if a call waited for it.
TEST_F(OccupancyCore, WithoutAWaitForAllWorkMemoryIsFreedAtOnceAndNeverPaused) {
    table_.device_synchronize = nullptr;
    open();
    uint64_t address = 0;
    ASSERT_TRUE(occupancy_->alloc(kMiB, "weights", {}, &address).ok());
    auto change = sh_sized<sh_occupancy_change>();
    const Status paused = occupancy_->pause({}, {}, &change);
    EXPECT_EQ(paused.code(), SH_ERROR_UNSUPPORTED);
    const char* const reason = devices_without_pages() ? "does not map memory by pages" : "cannot wait for all work";
    EXPECT_NE(std::string(paused.text()).find(reason), std::string::npos) << paused.text();
    EXPECT_EQ(occupancy_->prepare({}, {}).code(), SH_ERROR_UNSUPPORTED);
    auto info = sh_sized<sh_occupancy_info>();
    ASSERT_TRUE(occupancy_->info("weights", &info).ok());
    EXPECT_EQ(info.state, SH_OCCUPANCY_RUNNING + 0u);
    EXPECT_TRUE(occupancy_->free(address).ok());
    ASSERT_TRUE(occupancy_->info("weights", &info).ok());
    EXPECT_EQ(info.device_bytes, 0u);
}

// Contents that cannot be compared are copied. A pause does not fail for that.
TEST_F(OccupancyCore, WithoutHashesEverythingIsCopied) {
    if (devices_without_pages()) GTEST_SKIP() << "memory without pages cannot be paused";
    using Hash = decltype(sh_backend::contents_hash);
    const Hash kHashes[] = {nullptr,
                            [](sh_backend_device*, sh_stream, uint64_t, const sh_backend_range*,
                               sh_backend_digest*) -> sh_status { return SH_ERROR_UNSUPPORTED; },
                            [](sh_backend_device*, sh_stream, uint64_t, const sh_backend_range*,
                               sh_backend_digest*) -> sh_status { return SH_ERROR_BACKEND; }};
    const Hash real = table_.contents_hash;
    for (const bool works : {true, false})
        for (const Hash hash : kHashes) {
            table_.contents_hash = works ? real : hash;
            open();
            uint64_t address = 0;
            ASSERT_TRUE(occupancy_->alloc(2 * kMiB, "weights", {}, &address).ok());
            std::memset(reinterpret_cast<void*>(address), 7, 2 * kMiB);
            for (const uint64_t copied : {2 * kMiB, works ? 0 : 2 * kMiB}) {
                auto change = sh_sized<sh_occupancy_change>();
                ASSERT_TRUE(occupancy_->pause({}, {}, &change).ok());
                EXPECT_EQ(change.copied_bytes, copied);
                EXPECT_EQ(change.unchanged_bytes, 2 * kMiB - copied);
                ASSERT_TRUE(occupancy_->resume({}, &change).ok());
                EXPECT_EQ(*reinterpret_cast<const char*>(address + 2 * kMiB - 1), 7);
            }
            occupancy_.reset();
            device_.reset();
        }
}

// The copy that fails has overwritten what host memory had. Nobody may take this for the contents of the time before.
TEST_F(OccupancyCore, AFailedPauseLeavesNoCopyToCompareWith) {
    if (devices_without_pages()) GTEST_SKIP() << "memory without pages cannot be paused";
    static bool fails;
    static decltype(sh_backend::copy_to_host) real;
    real = table_.copy_to_host;
    table_.copy_to_host = [](sh_backend_device* device, sh_stream stream, void* to, uint64_t from, uint64_t bytes) {
        const sh_status status = real(device, stream, to, from, bytes);
        return fails ? sh_status(SH_ERROR_BACKEND) : status;
    };
    open();
    std::string calls;
    uint64_t address = 0, id = 0;
    ASSERT_TRUE(occupancy_->alloc(2 * kMiB, "weights", {}, &address).ok());
    const core::OccupancyCallbacks callbacks = {
        [](const char* const*, uint64_t, char*, uint64_t, void* out) -> int32_t {
            *static_cast<std::string*>(out) += '-';
            return 0;
        },
        [](const char* const*, uint64_t, void* out) { *static_cast<std::string*>(out) += '+'; }, &calls};
    ASSERT_TRUE(occupancy_->add_callbacks(callbacks, &id).ok());
    const auto fill = [&](int with) { std::memset(reinterpret_cast<void*>(address), with, 2 * kMiB); };
    const auto byte = [&] { return *reinterpret_cast<const char*>(address + kMiB); };
    auto change = sh_sized<sh_occupancy_change>();
    fill(7);
    ASSERT_TRUE(occupancy_->pause({}, {}, &change).ok());
    ASSERT_TRUE(occupancy_->resume({}, &change).ok());
    fill(9);
    fails = true;
    EXPECT_EQ(occupancy_->pause({}, {}, &change).code(), SH_ERROR_BACKEND);
    EXPECT_EQ(calls, "-+-+") << "the tags run again";
    EXPECT_EQ(byte(), 9);
    fails = false;
    fill(7);
    ASSERT_TRUE(occupancy_->pause({}, {}, &change).ok());
    EXPECT_EQ(change.copied_bytes, 2 * kMiB);
    ASSERT_TRUE(occupancy_->resume({}, &change).ok());
    EXPECT_EQ(byte(), 7);
}

TEST_F(OccupancyCore, ASmallAllocationWithoutRoomIsRefusedUntilThereIsSome) {
    open();
    uint64_t address = 0;
    ASSERT_TRUE(occupancy_->alloc(4 * kMiB, "large", {}, &address).ok());
    uint64_t small = 0;
    EXPECT_EQ(occupancy_->alloc(1000, "small", {}, &small).code(), SH_ERROR_BUDGET);
    EXPECT_TRUE(occupancy_->free(address).ok());
    EXPECT_TRUE(occupancy_->alloc(1000, "small", {}, &small).ok());
}

}  // namespace
}  // namespace stagehand::test
