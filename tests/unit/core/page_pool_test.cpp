// The ceiling of the page pool. Several threads may change the ceiling at once.
#include <chrono>
#include <optional>
#include <thread>

#include "core/device/device.h"
#include "engine.h"

namespace stagehand::test {
namespace {

// A thread looks up the ceiling and has to wait, and the ceiling changes meanwhile. The older value must not replace
// the newer one.
TEST(PoolLimit, is_that_of_the_last_change) {
    core::DeviceOptions options;
    options.device.budget_bytes = 64 * kPage;
    options.device.page_bytes = kPage;
    std::shared_ptr<core::Device> device;
    ASSERT_TRUE(core::Device::open("host", options, &device).ok());
    std::optional<core::PagePool::Change> change(std::in_place, device->pool());
    std::thread waits([&] { device->limit_pool(); });
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    ASSERT_TRUE(device->arbiter().set_total(8).ok());
    change.reset();
    waits.join();
    change.emplace(device->pool());
    EXPECT_TRUE(change->has_room(8));
    EXPECT_FALSE(change->has_room(9));
}

}  // namespace
}  // namespace stagehand::test
