// Memory of sh_alloc() on devices that the test makes itself: a backend that cannot wait for all work, and the
// questions that an allocation asks the budget.
#include <memory>
#include <span>
#include <string>

#include "core/device/device.h"
#include "core/occupancy/occupancy.h"
#include "engine.h"
#include "plugins/backends.h"

namespace stagehand::test {
namespace {

constexpr uint64_t kMiB = uint64_t(1) << 20;

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
        sh_device_options options = SH_DEVICE_OPTIONS_INIT;
        options.budget_bytes = 4 * kMiB;
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
    ASSERT_TRUE(occupancy_->alloc(kMiB, "weights", core::Leaving::stage, &address).ok());
    sh_occupancy_change change = SH_OCCUPANCY_CHANGE_INIT;
    const Status paused = occupancy_->pause({}, std::nullopt, &change);
    EXPECT_EQ(paused.code(), SH_ERROR_UNSUPPORTED);
    const char* const reason = devices_without_pages() ? "does not map memory by pages" : "cannot wait for all work";
    EXPECT_NE(std::string(paused.text()).find(reason), std::string::npos) << paused.text();
    EXPECT_EQ(occupancy_->prepare({}, std::nullopt).code(), SH_ERROR_UNSUPPORTED);
    sh_occupancy_info info = SH_OCCUPANCY_INFO_INIT;
    ASSERT_TRUE(occupancy_->info("weights", &info).ok());
    EXPECT_EQ(info.state, SH_OCCUPANCY_RUNNING + 0u);
    EXPECT_TRUE(occupancy_->free(address).ok());
    ASSERT_TRUE(occupancy_->info("weights", &info).ok());
    EXPECT_EQ(info.device_bytes, 0u);
}

// A backend whose wait fails keeps the memory.
TEST_F(OccupancyCore, MemoryIsKeptIfTheDriverFailsToWait) {
    table_.device_synchronize = [](sh_backend_device*) -> sh_status { return SH_ERROR_BACKEND; };
    open();
    uint64_t address = 0;
    ASSERT_TRUE(occupancy_->alloc(kMiB, "weights", core::Leaving::stage, &address).ok());
    EXPECT_EQ(occupancy_->free(address).code(), SH_ERROR_BACKEND);
    sh_occupancy_info info = SH_OCCUPANCY_INFO_INIT;
    ASSERT_TRUE(occupancy_->info(nullptr, &info).ok());
    EXPECT_EQ(info.allocations, 1u);
    EXPECT_GE(info.device_bytes, kMiB);
}

TEST_F(OccupancyCore, ASmallAllocationWithoutRoomAsksOnlyOnce) {
    open();
    uint64_t address = 0;
    ASSERT_TRUE(occupancy_->alloc(4 * kMiB, "large", core::Leaving::stage, &address).ok());
    size_t questions = 0;
    device_->arbiter().set_journal(
        [&](const core::Arbiter::Entry& entry, std::span<const core::Arbiter::Standing>, const auto&) {
            questions += entry.needs && entry.needs->least_pages > 4 * kMiB / kPage;
        });
    uint64_t small = 0;
    EXPECT_EQ(occupancy_->alloc(1000, "small", core::Leaving::stage, &small).code(), SH_ERROR_BUDGET);
    EXPECT_EQ(questions, 1u);
    EXPECT_TRUE(occupancy_->free(address).ok());
    EXPECT_TRUE(occupancy_->alloc(1000, "small", core::Leaving::stage, &small).ok());
    device_->arbiter().set_journal(nullptr);
}

}  // namespace
}  // namespace stagehand::test
