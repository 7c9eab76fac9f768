// The pages of the driver behind large allocations.
#include "occupancy_fixture.h"

namespace stagehand::test {
namespace {

class OccupancyPages : public PausingTest {};

TEST_F(OccupancyPages, LargeAllocationsLieInLargePagesOfTheDriver) {
    open("capacity=64MiB;largest_handle=16MiB;poison=1");
    const uint64_t address = filled(1, 30 * kMiB);
    EXPECT_EQ(on_device().pages, 2u) << "16 and 14 MiB: each takes calls of the driver in a pause";
    EXPECT_EQ(address % (16 * kMiB), 0u);
    SUCCEEDS(pause());
    EXPECT_EQ(on_device().pages, 0u);
    SUCCEEDS(resume());
    EXPECT_EQ(read(address, 30 * kMiB), contents(1, 30 * kMiB));
    reinterpret_cast<uint8_t*>(address)[20 * kMiB] ^= 1;
    auto change = sh_sized<sh_occupancy_change>();
    SUCCEEDS(pause({}, 0, SH_CONTENTS_DEFAULT, &change));
    EXPECT_EQ(change.copied_bytes, 2 * kMiB) << "what is compared is no larger";
    SUCCEEDS(resume());
    std::vector<uint8_t> truth = contents(1, 30 * kMiB);
    truth[20 * kMiB] ^= 1;
    EXPECT_EQ(read(address, 30 * kMiB), truth);
}

}  // namespace
}  // namespace stagehand::test
