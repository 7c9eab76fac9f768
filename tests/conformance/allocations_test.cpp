// Memory of devices that do not map memory by pages. Its addresses come with the memory, in one piece.
#include <algorithm>

#include "instantiate.h"

namespace conformance {
namespace {

class PlainMemoryTest : public Conformance {
protected:
    void SetUp() override {
        Conformance::SetUp();
        if (device() && has(SH_BACKEND_FIXED_ADDRESSES)) GTEST_SKIP() << "this device maps memory by pages";
    }
};

TEST_P(PlainMemoryTest, ARangeKeepsWhatIsWritten) {
    const uint64_t range = new_range(5 * page());
    EXPECT_EQ(range % 256, 0u);
    const auto bytes = pattern(5 * page(), 1);
    write(range, bytes);
    expect_contents(range, bytes);
}

TEST_P(PlainMemoryTest, RangesAreApart) {
    struct Range {
        uint64_t begin, bytes, seed;
    };
    std::vector<Range> ranges;
    for (uint64_t i = 0; i < 16; ++i) {
        const uint64_t bytes = (1 + i % 3) * page();
        ranges.push_back({new_range(bytes), bytes, i});
        write(ranges.back().begin, pattern(bytes, i));
    }
    for (const Range& range : ranges) expect_contents(range.begin, pattern(range.bytes, range.seed));
    std::sort(ranges.begin(), ranges.end(), [](const Range& a, const Range& b) { return a.begin < b.begin; });
    for (size_t i = 1; i < ranges.size(); ++i) EXPECT_LE(ranges[i - 1].begin + ranges[i - 1].bytes, ranges[i].begin);
}

TEST_P(PlainMemoryTest, TooMuchIsRefusedAndChangesNothing) {
    uint64_t address = 12345;
    const uint64_t before = free_bytes();
    EXPECT_EQ(backend().range_reserve(device(), (info().total_bytes / page() + 1) * page(), page(), &address),
              SH_ERROR_OUT_OF_DEVICE_MEMORY);
    EXPECT_STRNE(backend().last_error(), "");
    EXPECT_EQ(address, 12345u);
    if (quirks().exact_accounting) {
        EXPECT_EQ(free_bytes(), before);
    }
    new_range(page());
}

TEST_P(PlainMemoryTest, ThereAreNoPages) {
    sh_backend_page made = 7;
    EXPECT_EQ(backend().pages_create(device(), page(), 1, &made), SH_ERROR_UNSUPPORTED);
    EXPECT_STRNE(backend().last_error(), "");
    EXPECT_EQ(made, 7u);
    const uint64_t range = new_range(page());
    const sh_backend_page other = 1;
    EXPECT_EQ(backend().pages_map(device(), range, page(), 1, &other), SH_ERROR_UNSUPPORTED);
    EXPECT_EQ(backend().pages_unmap(device(), range, page(), 1), SH_ERROR_UNSUPPORTED);
    EXPECT_EQ(backend().pages_destroy(device(), page(), 1, &other), SH_ERROR_UNSUPPORTED);
}

SH_ON_EVERY_BACKEND(PlainMemoryTest);

}  // namespace
}  // namespace conformance
