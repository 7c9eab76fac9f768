// Ranges that hold nothing: they are neither copied nor kept in host memory.
#include "occupancy_fixture.h"

namespace stagehand::test {
namespace {

class OccupancyUnused : public PausingTest {
protected:
    sh_status pause_without(const std::vector<sh_memory_range>& unused, sh_occupancy_change* change = nullptr) {
        return sh_pause(device_, with(unused), change);
    }
    const sh_pause_options* with(const std::vector<sh_memory_range>& unused, uint32_t flags = 0) {
        options_ = SH_PAUSE_OPTIONS_INIT;
        options_.flags = flags;
        options_.unused = unused.data();
        options_.unused_count = unused.size();
        return &options_;
    }
    // Expects these bytes of host memory, and these copies.
    void expect_cycle(const std::vector<sh_memory_range>& unused, uint64_t host_bytes, uint64_t copied,
                      uint64_t unchanged) {
        auto out = sh_sized<sh_occupancy_change>(), back = sh_sized<sh_occupancy_change>();
        SUCCEEDS(pause_without(unused, &out));
        EXPECT_EQ(out.copied_bytes, copied);
        EXPECT_EQ(out.unchanged_bytes, unchanged);
        EXPECT_EQ(info().host_bytes, host_bytes);
        EXPECT_EQ(info().staged_bytes, copied + unchanged);
        SUCCEEDS(resume({}, 0, &back));
        EXPECT_EQ(back.copied_bytes, copied + unchanged);
    }
    static std::vector<uint8_t> contents_at(const std::vector<uint8_t>& from, uint64_t offset, uint64_t bytes) {
        const auto begin = from.begin() + static_cast<std::ptrdiff_t>(offset);
        return {begin, begin + static_cast<std::ptrdiff_t>(bytes)};
    }

    sh_pause_options options_ = {};
};

TEST_F(OccupancyUnused, WholePagesStayOutOfHostMemory) {
    open("capacity=64MiB;granularity=64KiB;poison=1");
    constexpr uint64_t kBytes = 4 * kPart + 65536;
    const uint64_t address = filled(1, kBytes), other = filled(2, kPart);
    // Ranges in any order. They lie over each other and end within pages, and one is of no allocation at all.
    expect_cycle({{address + 3 * kPart - 100, 50},
                  {address + kPart + 1000, 2 * kPart - 1050},
                  {address + kPart - 1, 1001},
                  {address + 4 * kPart, 65536},
                  {address + 7, 0},
                  {7, 4096}},
                 kBytes, kBytes - 65536, 0);
    const std::vector<uint8_t> truth = contents(1, kBytes);
    for (const uint64_t part : {0, 2, 3})
        EXPECT_EQ(read(address + part * kPart, kPart), contents_at(truth, part * kPart, kPart)) << "part " << part;
    EXPECT_EQ(read(other, kPart), contents(2, kPart));
}

}  // namespace
}  // namespace stagehand::test
