// Memory: pages, addresses, and the mapping of pages at addresses.
#include <algorithm>
#include <numeric>

#include "instantiate.h"

namespace conformance {
namespace {

class MemoryTest : public Conformance {
protected:
    void SetUp() override {
        Conformance::SetUp();
        if (device() && !has(SH_BACKEND_FIXED_ADDRESSES)) GTEST_SKIP() << "this device does not map memory by pages";
    }
};

TEST_P(MemoryTest, PagesAreCountedInFreeMemory) {
    const uint64_t before = free_bytes();
    const uint64_t count = 16;
    std::vector<sh_backend_page> pages(count);
    SH_OK_OR_END(backend().pages_create(device(), page(), count, pages.data()));
    std::sort(pages.begin(), pages.end());
    EXPECT_NE(pages.front(), 0u);
    EXPECT_EQ(std::adjacent_find(pages.begin(), pages.end()), pages.end()) << "two pages have one name";
    if (quirks().exact_accounting) {
        EXPECT_EQ(free_bytes(), before - count * page());
    }
    SH_OK_OR_END(backend().pages_destroy(device(), page(), count, pages.data()));
    if (quirks().exact_accounting) {
        EXPECT_EQ(free_bytes(), before);
    }
}

TEST_P(MemoryTest, AddressesTakeNoMemory) {
    const uint64_t before = free_bytes();
    new_range(256 * page());
    if (quirks().exact_accounting) {
        EXPECT_EQ(free_bytes(), before);
    }
}

TEST_P(MemoryTest, RangesAreAlignedAndApart) {
    struct Range {
        uint64_t begin, end;
    };
    std::vector<Range> ranges;
    for (uint64_t alignment = page(); alignment <= 64 * page(); alignment *= 2) {
        const uint64_t bytes = 3 * page();
        uint64_t address = 0;
        SH_OK_OR_END(backend().range_reserve(device(), bytes, alignment, &address));
        EXPECT_EQ(address % alignment, 0u);
        for (const Range& other : ranges) EXPECT_TRUE(address >= other.end || address + bytes <= other.begin);
        ranges.push_back({address, address + bytes});
    }
    for (const Range& range : ranges)
        SH_EXPECT_OK(backend().range_free(device(), range.begin, range.end - range.begin));
}

TEST_P(MemoryTest, MappedMemoryKeepsWhatIsWritten) {
    const Memory memory = new_memory(5 * page());
    const auto bytes = pattern(memory.bytes, 1);
    write(memory.address, bytes);
    expect_contents(memory.address, bytes);
}

TEST_P(MemoryTest, AllOrNoPagesAreMade) {
    const uint64_t before = free_bytes();
    // Pages of which a few fit, but not all.
    const uint64_t large = std::max(before / 4 / page() * page(), page());
    const uint64_t count = before / large + 2;
    std::vector<sh_backend_page> pages(count, 12345);
    EXPECT_EQ(backend().pages_create(device(), large, count, pages.data()), SH_ERROR_OUT_OF_DEVICE_MEMORY);
    EXPECT_STRNE(backend().last_error(), "");
    if (quirks().exact_accounting) {
        EXPECT_EQ(free_bytes(), before);
    }
    new_memory(page());  // and the device goes on
}

TEST_P(MemoryTest, AliasesShareTheirBytes) {
    const auto pages = new_pages(3);
    const uint64_t one = new_range(3 * page()), two = new_range(3 * page());
    map(one, pages);
    map(two, {pages[2], pages[0], pages[1]});
    const auto bytes = pattern(3 * page(), 2);
    write(one, bytes);
    expect_contents(two, {bytes.begin() + 2 * page(), bytes.end()});
    expect_contents(two + page(), {bytes.begin(), bytes.begin() + 2 * page()});
    const auto other = pattern(page(), 3);
    write(two + 2 * page(), other);
    expect_contents(one + page(), other);
}

TEST_P(MemoryTest, APageCanBeMappedTwiceInOneCall) {
    const auto pages = new_pages(1);
    const uint64_t range = new_range(2 * page());
    map(range, {pages[0], pages[0]});
    const auto bytes = pattern(page(), 4);
    write(range + page(), bytes);
    expect_contents(range, bytes);
}

TEST_P(MemoryTest, ContentsSurviveRemapping) {
    const auto pages = new_pages(4);
    const uint64_t one = new_range(4 * page()), two = new_range(8 * page());
    const auto bytes = pattern(4 * page(), 5);
    map(one, pages);
    write(one, bytes);
    unmap(one, 4);
    map(two + 3 * page(), pages);
    expect_contents(two + 3 * page(), bytes);
    unmap(two + 3 * page(), 4);
    map(one, pages);
    expect_contents(one, bytes);
}

TEST_P(MemoryTest, OtherPagesCanTakeAnAddress) {
    const auto first = new_pages(2), second = new_pages(2);
    const uint64_t range = new_range(2 * page());
    const auto a = pattern(2 * page(), 6), b = pattern(2 * page(), 7);
    map(range, first);
    write(range, a);
    unmap(range, 2);
    map(range, second);
    write(range, b);
    unmap(range, 2);
    map(range, first);
    expect_contents(range, a);
    unmap(range, 2);
    map(range, second);
    expect_contents(range, b);
}

TEST_P(MemoryTest, APartCanBeUnmappedAndMappedAnew) {
    const auto pages = new_pages(4), other = new_pages(2);
    const uint64_t range = new_range(4 * page());
    SH_OK_OR_END(backend().pages_map(device(), range, page(), 4, pages.data()));
    const auto bytes = pattern(4 * page(), 8), middle = pattern(2 * page(), 9);
    write(range, bytes);
    SH_OK_OR_END(backend().pages_unmap(device(), range + page(), page(), 2));
    SH_OK_OR_END(backend().pages_map(device(), range + page(), page(), 2, other.data()));
    write(range + page(), middle);
    expect_contents(range, {bytes.begin(), bytes.begin() + page()});
    expect_contents(range + page(), middle);
    expect_contents(range + 3 * page(), {bytes.begin() + 3 * page(), bytes.end()});
    SH_EXPECT_OK(backend().pages_unmap(device(), range, page(), 4));
}

TEST_P(MemoryTest, PagesOfSeveralSizes) {
    for (uint64_t size = page(); size <= std::min(info().largest_page_bytes, 16 * page()); size *= 2) {
        const Memory memory = new_memory(3 * size, size);
        const auto bytes = pattern(3 * size, size);
        write(memory.address, bytes);
        expect_contents(memory.address, bytes);
    }
    const uint64_t largest = info().largest_handle_bytes;
    if (!largest || largest > free_bytes() / 4) return;
    const Memory memory = new_memory(2 * largest, largest);
    const auto bytes = pattern(2 * page(), 1);
    write(memory.address + largest - page(), bytes);
    expect_contents(memory.address + largest - page(), bytes);
    const Memory odd = new_memory(6 * page(), 3 * page());
    const auto all = pattern(6 * page(), 2);
    write(odd.address, all);
    expect_contents(odd.address, all);
}

TEST_P(MemoryTest, ManyPagesInTheWrongOrder) {
    const uint64_t count = std::min(quirks().many_pages, free_bytes() / 2 / page());
    auto pages = new_pages(count);
    const uint64_t range = new_range(count * page());
    std::reverse(pages.begin(), pages.end());
    map(range, pages);
    for (const uint64_t i : {uint64_t(0), uint64_t(1), count / 3, count - 1}) {
        const auto bytes = pattern(100, i);
        write(range + i * page() + page() / 2, bytes);
        expect_contents(range + i * page() + page() / 2, bytes);
    }
}

TEST_P(MemoryTest, MisuseIsAnErrorAndChangesNothing) {
    if (!quirks().checks_handles) GTEST_SKIP() << "drivers do not check this";
    const auto pages = new_pages(3);
    const uint64_t range = new_range(4 * page());
    map(range, {pages[0], pages[1]});
    const auto bytes = pattern(2 * page(), 10);
    write(range, bytes);
    const uint64_t before = free_bytes();
    const sh_backend_page unknown = pages[2] + 1000000;
    SH_EXPECT_FAILURE(backend().pages_map(device(), range + page(), page(), 1, &pages[2]));      // mapped already
    SH_EXPECT_FAILURE(backend().pages_map(device(), range + 3 * page(), page(), 2, &pages[0]));  // over the range's end
    SH_EXPECT_FAILURE(backend().pages_map(device(), range + 2 * page(), page(), 1, &unknown));
    SH_EXPECT_FAILURE(backend().pages_map(device(), range + 2 * page(), 2 * page(), 1, &pages[2]));  // of another size
    SH_EXPECT_FAILURE(backend().pages_map(device(), range + 2 * page() + 1, page(), 1, &pages[2]));
    SH_EXPECT_FAILURE(backend().pages_unmap(device(), range + 2 * page(), page(), 1));  // not mapped
    SH_EXPECT_FAILURE(backend().pages_unmap(device(), range + page(), page(), 2));      // only partly mapped
    SH_EXPECT_FAILURE(backend().pages_destroy(device(), page(), 3, pages.data()));      // two are mapped
    const sh_backend_page twice[] = {pages[2], pages[2]};
    SH_EXPECT_FAILURE(backend().pages_destroy(device(), page(), 2, twice));
    SH_EXPECT_FAILURE(backend().pages_destroy(device(), page(), 1, &unknown));
    SH_EXPECT_FAILURE(backend().range_free(device(), range, 4 * page()));  // something is mapped there
    SH_EXPECT_FAILURE(backend().range_free(device(), range + page(), page()));
    sh_backend_page made = 0;
    SH_EXPECT_FAILURE(backend().pages_create(device(), page() + 1, 1, &made));
    SH_EXPECT_FAILURE(backend().pages_create(device(), 0, 1, &made));
    SH_EXPECT_FAILURE(backend().pages_create(device(), page(), UINT64_MAX / 2, &made));
    uint64_t address = 0;
    SH_EXPECT_FAILURE(backend().range_reserve(device(), 0, page(), &address));
    SH_EXPECT_FAILURE(backend().range_reserve(device(), page(), 3 * page(), &address));
    EXPECT_EQ(free_bytes(), before);
    expect_contents(range, bytes);
    map(range + 2 * page(), {pages[2]});  // it was spared by the destruction that failed
}

SH_ON_EVERY_BACKEND(MemoryTest);

}  // namespace
}  // namespace conformance
