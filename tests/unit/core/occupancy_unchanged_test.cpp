// Contents that host memory still has: a pause copies only what has changed, and nothing that is promised to be
// constant.
#include <bit>

#include "occupancy_fixture.h"

namespace stagehand::test {
namespace {

class OccupancyUnchanged : public PausingTest {
protected:
    uint64_t constant(uint64_t seed, uint64_t bytes, const char* tag = nullptr) {
        sh_alloc_options options = SH_ALLOC_OPTIONS_INIT;
        options.tag = tag;
        options.flags = SH_ALLOC_CONST;
        uint64_t address = 0;
        EXPECT_SUCCEEDS(sh_alloc(device_, bytes, &options, &address));
        if (address) write(address, contents(seed, bytes));
        return address;
    }
    // One pause and one resume. Expects these bytes to be copied, and to be known.
    void expect_cycle(uint64_t copied, uint64_t unchanged, uint32_t flags = 0) {
        auto out = sh_sized<sh_occupancy_change>(), back = sh_sized<sh_occupancy_change>();
        SUCCEEDS(pause({}, flags, SH_CONTENTS_DEFAULT, &out));
        EXPECT_EQ(out.copied_bytes, copied);
        EXPECT_EQ(out.unchanged_bytes, unchanged);
        EXPECT_EQ(on_device().current_bytes, 0u);
        SUCCEEDS(resume({}, 0, &back));
        EXPECT_EQ(back.copied_bytes, copied + unchanged) << "all of it comes back";
        EXPECT_EQ(back.unchanged_bytes, 0u);
    }
};

TEST_F(OccupancyUnchanged, EveryMixOfPages) {
    open();
    constexpr uint64_t kBytes = 4 * kPart;
    const uint64_t address = filled(1, kBytes);
    std::vector<uint8_t> truth = contents(1, kBytes);
    expect_cycle(kBytes, 0);
    expect_cycle(0, kBytes);
    for (unsigned mask = 0; mask < 16; mask++) {
        for (uint64_t part = 0; part < 4; part++)
            if (mask >> part & 1) truth[part * kPart + (part * 777'777 + mask) % kPart] ^= 1;
        write(address, truth);
        const uint64_t changed = static_cast<uint64_t>(std::popcount(mask)) * kPart;
        expect_cycle(changed, kBytes - changed);
        EXPECT_EQ(read(address, kBytes), truth) << "mask " << mask;
    }
}

TEST_F(OccupancyUnchanged, TheCallerMayHaveEverythingCopied) {
    open();
    const uint64_t address = filled(1, 3 * kPart);
    expect_cycle(3 * kPart, 0, SH_OCCUPANCY_COPY_ALL);
    expect_cycle(3 * kPart, 0);  // nothing is known of the copy
    expect_cycle(0, 3 * kPart);
    expect_cycle(3 * kPart, 0, SH_OCCUPANCY_COPY_ALL);
    expect_cycle(3 * kPart, 0);
    expect_cycle(0, 3 * kPart);
    EXPECT_EQ(read(address, 3 * kPart), contents(1, 3 * kPart));
}

TEST_F(OccupancyUnchanged, ConstantContentsAreNotEvenComparedAgain) {
    open();
    const uint64_t fixed = constant(1, 2 * kPart), other = filled(2, kPart);
    expect_cycle(3 * kPart, 0);
    // The promise is broken, so that it shows: nobody looks.
    write(fixed, contents(9, 2 * kPart));
    write(other, contents(3, kPart));
    expect_cycle(kPart, 2 * kPart);
    EXPECT_EQ(read(fixed, 2 * kPart), contents(1, 2 * kPart));
    EXPECT_EQ(read(other, kPart), contents(3, kPart));
    write(fixed, contents(4, 2 * kPart));
    expect_cycle(3 * kPart, 0, SH_OCCUPANCY_COPY_ALL);
    EXPECT_EQ(read(fixed, 2 * kPart), contents(4, 2 * kPart));
    // Contents that were dropped are new afterwards.
    SUCCEEDS(pause({}, 0, SH_CONTENTS_DROP));
    SUCCEEDS(resume());
    write(fixed, contents(5, 2 * kPart));
    write(other, contents(3, kPart));
    expect_cycle(3 * kPart, 0);
    EXPECT_EQ(read(fixed, 2 * kPart), contents(5, 2 * kPart));
}

}  // namespace
}  // namespace stagehand::test
