// Contents that cross the link packed in a pause, and come back so.
#include "../codec/weights.h"
#include "occupancy_fixture.h"

namespace stagehand::test {
namespace {

using codec::FloatFormat;

class OccupancyPacked : public PausingTest {
protected:
    static std::vector<uint8_t> weights(FloatFormat format, uint64_t bytes, uint32_t seed) {
        const uint64_t elements = bytes / codec::fields_of(format).bytes();
        std::vector<uint8_t> all = codec::test::repeated_weights(format, elements, static_cast<uint8_t>(seed));
        all.resize(bytes);
        return all;
    }
    uint64_t alloc_of(FloatFormat format, uint64_t bytes, const char* tag = nullptr, uint32_t flags = 0) {
        sh_alloc_options options = SH_ALLOC_OPTIONS_INIT;
        options.tag = tag;
        options.format = static_cast<uint32_t>(format);
        options.flags = flags;
        uint64_t address = 0;
        EXPECT_SUCCEEDS(sh_alloc(device_, bytes, &options, &address));
        return address;
    }
    // Pauses and resumes. Expects so many bytes to leave and to come back, and so many of them packed.
    void cycle(uint64_t out, uint64_t out_packed, uint64_t back_packed, uint32_t format = 0, uint32_t flags = 0) {
        sh_pause_options options = SH_PAUSE_OPTIONS_INIT;
        options.format = format;
        options.flags = flags;
        auto gone = sh_sized<sh_occupancy_change>(), back = sh_sized<sh_occupancy_change>();
        SUCCEEDS(sh_pause(device_, &options, &gone));
        EXPECT_EQ(gone.copied_bytes, out);
        EXPECT_EQ(gone.packed_bytes, out_packed);
        SUCCEEDS(resume({}, 0, &back));
        EXPECT_EQ(back.packed_bytes, back_packed);
    }
};

TEST_F(OccupancyPacked, every_format_comes_back_with_its_bytes) {
    for (const FloatFormat format : codec::test::kFormats) {
        open();
        constexpr uint64_t kBytes = 2 * kPart;
        const uint64_t address = alloc_of(format, kBytes);
        for (uint32_t seed = 1; seed < 5; seed++) {
            const std::vector<uint8_t> truth = seed % 2 ? weights(format, kBytes, seed) : contents(seed, kBytes);
            write(address, truth);
            cycle(kBytes, kBytes, kBytes);
            EXPECT_EQ(read(address, kBytes), truth) << static_cast<int>(format) << ", " << seed;
        }
        const uint64_t header_bytes = kBytes / codec::fields_of(format).bytes() / 8192 * 16;
        EXPECT_EQ(info().host_bytes, kBytes + header_bytes);
        EXPECT_EQ(info().pinned_bytes, kBytes + header_bytes);
        SUCCEEDS(sh_free(device_, address));
        EXPECT_EQ(info().host_bytes, 0u);
        sh_device_close(device_);
        device_ = nullptr;
    }
}

TEST_F(OccupancyPacked, what_has_not_changed_stays_packed_in_host_memory) {
    open();
    constexpr uint64_t kBytes = 4 * kPart;
    const uint64_t address = alloc_of(FloatFormat::bf16, kBytes);
    std::vector<uint8_t> truth = weights(FloatFormat::bf16, kBytes, 1);
    write(address, truth);
    cycle(kBytes, kBytes, kBytes);
    cycle(0, 0, kBytes);
    truth[2 * kPart + 5] ^= 1;
    write(address, truth);
    cycle(kPart, kPart, kBytes);
    EXPECT_EQ(read(address, kBytes), truth);
    const uint64_t constant = alloc_of(FloatFormat::bf16, kPart, "constant", SH_ALLOC_CONST);
    write(constant, weights(FloatFormat::bf16, kPart, 2));
    cycle(kPart, kPart, kBytes + kPart);
    cycle(0, 0, kBytes + kPart);
    EXPECT_EQ(read(constant, kPart), weights(FloatFormat::bf16, kPart, 2));
}

// Ranges that begin and end anywhere in tiles, in pages that are packed and in one that is not.
TEST_F(OccupancyPacked, contents_are_read_while_they_are_away) {
    open("capacity=64MiB;granularity=4KiB;poison=1");
    for (const FloatFormat format : codec::test::kFormats) {
        constexpr uint64_t kBytes = 2 * kPart + 4096;  // the last page has less than a tile
        const uint64_t address = alloc_of(format, kBytes);
        const std::vector<uint8_t> truth = weights(format, kBytes, 3);
        write(address, truth);
        auto change = sh_sized<sh_occupancy_change>();
        SUCCEEDS(pause({}, 0, SH_CONTENTS_DEFAULT, &change));
        EXPECT_EQ(change.packed_bytes, 2 * kPart);
        for (const uint64_t begin : {uint64_t(0), uint64_t(1), uint64_t(16'383), kPart - 7, 2 * kPart - 1, 2 * kPart})
            for (const uint64_t bytes : {uint64_t(1), uint64_t(100), uint64_t(40'000), kPart, kBytes}) {
                const uint64_t size = std::min(bytes, kBytes - begin);
                std::vector<uint8_t> found(size);
                SUCCEEDS(sh_occupancy_read(device_, address + begin, size, found.data()));
                EXPECT_TRUE(std::equal(found.begin(), found.end(), truth.begin() + static_cast<long>(begin)))
                    << begin << ", " << bytes;
            }
        SUCCEEDS(resume());
        EXPECT_EQ(read(address, kBytes), truth);
        SUCCEEDS(sh_free(device_, address));
    }
}

// The device packs into host memory by itself.
TEST_F(OccupancyPacked, contents_leave_as_they_are_if_the_system_pins_no_more) {
    open("capacity=64MiB;poison=1;pin_limit=16MiB");
    constexpr uint64_t kBytes = 12 * kPart;
    const uint64_t small = alloc_of(FloatFormat::bf16, kPart);
    write(small, weights(FloatFormat::bf16, kPart, 8));
    cycle(kPart, kPart, kPart);
    const uint64_t large = alloc_of(FloatFormat::bf16, kBytes);
    const std::vector<uint8_t> truth = weights(FloatFormat::bf16, kBytes, 9);
    write(large, truth);
    cycle(kBytes, 0, kPart);
    EXPECT_EQ(read(large, kBytes), truth);
}

// What is packed has headers, too.
TEST_F(OccupancyPacked, a_limit_of_host_memory_holds_the_same_contents_each_time) {
    open();
    const uint64_t first = alloc_of(FloatFormat::bf16, kPart), second = alloc_of(FloatFormat::bf16, kPart);
    for (const uint64_t address : {first, second}) write(address, contents(address, kPart));
    sh_pause_options options = SH_PAUSE_OPTIONS_INIT;
    for (const uint64_t limit : {2 * kPart + 2 * kPart / 1024, 2 * kPart}) {
        options.host_bytes = limit;
        options.flags = SH_OCCUPANCY_PREPARE;
        SUCCEEDS(sh_pause(device_, &options, nullptr));
        options.flags = 0;
        for (int i = 0; i < 3; i++) {
            auto gone = sh_sized<sh_occupancy_change>();
            SUCCEEDS(sh_pause(device_, &options, &gone));
            const uint64_t in_file = limit == 2 * kPart ? kPart : 0;
            EXPECT_EQ(info().file_bytes, in_file) << i;
            EXPECT_LE(info().host_bytes, limit);
            EXPECT_TRUE(i == 0 || gone.copied_bytes == 0) << i << ": " << gone.copied_bytes;
            SUCCEEDS(resume());
        }
    }
    for (const uint64_t address : {first, second}) EXPECT_EQ(read(address, kPart), contents(address, kPart));
}

}  // namespace
}  // namespace stagehand::test
