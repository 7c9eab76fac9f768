// The arbiter by itself.
#include "core/device/arbiter.h"

#include <gtest/gtest.h>

namespace stagehand::core {
namespace {

class Asking : public Tenant {
public:
    void try_to_change() override {}
    void feel_pressure(uint64_t) override {}
    std::string tenant_name() const override { return "the model"; }
};

TEST(ArbiterTest, pages_that_a_failed_driver_keeps_are_not_blamed_on_others) {
    constexpr uint64_t kPage = 4096;
    Arbiter arbiter([] { return 0; }, kPage);
    ASSERT_TRUE(arbiter.set_total(16).ok());
    Asking model;
    arbiter.join(model);
    ASSERT_EQ(arbiter.lend(1, 8), 8u);
    arbiter.take_back(8, 8);
    uint64_t number = 0;
    const Status refused = arbiter.reserve(model, 12, policy::Priority::primary, &number);
    EXPECT_EQ(refused.code(), SH_ERROR_BUDGET);
    const std::string wanted = "32.0 KiB (32768 bytes) stay in use until the device is closed";
    EXPECT_NE(std::string(refused.text()).find(wanted), std::string::npos) << refused.text();
    EXPECT_TRUE(arbiter.reserve(model, 8, policy::Priority::primary, &number).ok());
    arbiter.leave(model, 0);
}

}  // namespace
}  // namespace stagehand::core
