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

// The last pages of an allocation are smaller, and small allocations share theirs.
TEST_F(OccupancyUnchanged, SizesThatAreNoMultiples) {
    open("capacity=64MiB;granularity=64KiB;poison=1");
    constexpr uint64_t kBytes = 3 * kPart + 7 * 65536;
    const uint64_t address = filled(1, kBytes), small = filled(2, 1000);
    expect_cycle(kBytes + kPart, 0);
    std::vector<uint8_t> truth = contents(1, kBytes);
    truth[kBytes - 1] ^= 0x80;  // in a page of 64 KiB
    write(address, truth);
    expect_cycle(65536, kBytes + kPart - 65536);
    write(small, contents(3, 1000));
    expect_cycle(kPart, kBytes);
    EXPECT_EQ(read(address, kBytes), truth);
    EXPECT_EQ(read(small, 1000), contents(3, 1000));
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

TEST_F(OccupancyUnchanged, TheCopyGoesWithTheHostMemory) {
    open();
    const uint64_t address = filled(1, 2 * kPart);
    expect_cycle(2 * kPart, 0);
    uint64_t freed = 0;
    SUCCEEDS(sh_occupancy_trim(device_, &freed));
    EXPECT_EQ(freed, 2 * kPart);
    expect_cycle(2 * kPart, 0);
    SUCCEEDS(pause());
    SUCCEEDS(sh_occupancy_trim(device_, &freed));
    EXPECT_EQ(freed, 0u) << "it is all there is of the contents";
    SUCCEEDS(resume());
    EXPECT_EQ(read(address, 2 * kPart), contents(1, 2 * kPart));
    // Memory that is new has no copy, also at the same address, where the system puts it unless another thread was
    // faster.
    SUCCEEDS(sh_free(device_, address));
    filled(2, 2 * kPart);
    expect_cycle(2 * kPart, 0);
}

// What the device has is compared with the copy, whatever happened in between.
TEST_F(OccupancyUnchanged, ContentsThatWereLostMayComeBackByTheEngine) {
    open();
    const uint64_t address = filled(1, 2 * kPart);
    expect_cycle(2 * kPart, 0);
    SUCCEEDS(pause({}, 0, SH_CONTENTS_ZERO));
    SUCCEEDS(resume());
    EXPECT_EQ(read(address, 2 * kPart), std::vector<uint8_t>(2 * kPart, 0));
    write(address + kPart, read(address, 100));
    std::vector<uint8_t> truth = contents(1, 2 * kPart);
    truth.resize(kPart);
    write(address, truth);
    expect_cycle(kPart, kPart);
    EXPECT_EQ(read(address, kPart), truth);
    EXPECT_EQ(read(address + kPart, kPart), std::vector<uint8_t>(kPart, 0));
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

TEST_F(OccupancyUnchanged, SmallConstantContentsShareNoMemoryWithOthers) {
    open();
    const uint64_t changing = filled(1, 1000), first = constant(2, 1000);
    expect_cycle(2 * kPart, 0);
    write(changing, contents(3, 1000));
    expect_cycle(kPart, kPart);
    const uint64_t second = constant(4, 1000);
    EXPECT_EQ(second / kPart, first / kPart) << "they share a chunk";
    expect_cycle(kPart, kPart);
    EXPECT_EQ(read(changing, 1000), contents(3, 1000));
    EXPECT_EQ(read(first, 1000), contents(2, 1000));
    EXPECT_EQ(read(second, 1000), contents(4, 1000));
    sh_alloc_options wrong = SH_ALLOC_OPTIONS_INIT;
    wrong.flags = 2;
    uint64_t address = 0;
    EXPECT_EQ(sh_alloc(device_, 1, &wrong, &address), SH_ERROR_INVALID_ARGUMENT);
}

}  // namespace
}  // namespace stagehand::test
