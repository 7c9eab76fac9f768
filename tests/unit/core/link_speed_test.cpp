// The speed of the link, which a device measures before its first plan where its backend does not tell it.
#include "engine.h"

namespace stagehand::test {
namespace {

TEST(LinkSpeed, is_that_of_a_machine) {
    DeviceSettings settings;
    settings.budget_bytes = 256 * kPage;
    settings.link_bytes_per_second = 0;  // measured
    SoloModel model(settings, equal_blocks(4, 4 * kPage), forward(4));
    const uint64_t speed = model.plan().link_bytes_per_second;
    EXPECT_GT(speed, 1'000'000u) << "a busy machine is slow, but not that slow";
    EXPECT_LT(speed, 1'000'000'000'000u) << "no link and no memory is that fast";
}

}  // namespace
}  // namespace stagehand::test
