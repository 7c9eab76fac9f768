#include "support/page_table.h"

#include <gtest/gtest.h>

#include <cstring>
#include <map>
#include <numeric>
#include <random>
#include <vector>

#include "page.h"
#include "support/last_error.h"

namespace stagehand::support {
namespace {

constexpr uint64_t kBase = 1 << 20;

class PageTableTest : public testing::Test {
protected:
    void SetUp() override {
        ASSERT_EQ(table_.add_range(kBase, 100 * kPage), SH_OK);
        pages_.resize(20);
        std::iota(pages_.begin(), pages_.end(), 1);
        ASSERT_EQ(table_.add_pages(kPage, pages_.size(), pages_.data()), SH_OK);
    }

    PageTable table_{kPage};
    std::vector<sh_backend_page> pages_;
};

TEST_F(PageTableTest, PagesMapAtAddressesThatAreNotMultiplesOfTheirSize) {
    const sh_backend_page large[] = {100, 101};
    ASSERT_EQ(table_.add_pages(4 * kPage, 2, large), SH_OK);
    ASSERT_EQ(table_.map(kBase + kPage, 4 * kPage, 2, large), SH_OK);
    EXPECT_EQ(table_.page_at(kBase + kPage, 4 * kPage), 100u);
    EXPECT_EQ(table_.page_at(kBase + 5 * kPage, 4 * kPage), 101u);
    EXPECT_EQ(table_.unmap(kBase, 4 * kPage, 1), SH_ERROR_INVALID_STATE) << "nothing begins there";
    EXPECT_EQ(table_.unmap(kBase + 2 * kPage, kPage, 1), SH_ERROR_INVALID_STATE) << "a part of a page";
    EXPECT_EQ(table_.unmap(kBase + kPage, 4 * kPage, 2), SH_OK);
}

TEST_F(PageTableTest, AFailureSparesThePagesBeforeIt) {
    const sh_backend_page list[] = {1, 2, 2}, wrong[] = {3, 999};
    EXPECT_EQ(table_.remove_pages(kPage, 3, list), SH_ERROR_INVALID_ARGUMENT);
    EXPECT_EQ(table_.remove_pages(kPage, 2, wrong), SH_ERROR_INVALID_HANDLE);
    EXPECT_EQ(table_.remove_pages(2 * kPage, 1, wrong), SH_ERROR_INVALID_ARGUMENT);
    EXPECT_EQ(table_.map(kBase, kPage, 3, pages_.data()), SH_OK);
    EXPECT_EQ(table_.map(kBase + 50 * kPage, kPage, 2, wrong), SH_ERROR_INVALID_HANDLE);
    EXPECT_EQ(table_.page_at(kBase + 50 * kPage, kPage), 0u);
    EXPECT_LT(table_.check_mapped(kBase + 50 * kPage, 1), 0);
}

TEST_F(PageTableTest, RangesAreGivenBackWhole) {
    ASSERT_EQ(table_.map(kBase + 99 * kPage, kPage, 1, pages_.data()), SH_OK);
    EXPECT_EQ(table_.remove_range(kBase, 100 * kPage), SH_ERROR_INVALID_STATE);
    ASSERT_EQ(table_.unmap(kBase + 99 * kPage, kPage, 1), SH_OK);
    EXPECT_EQ(table_.remove_range(kBase, 50 * kPage), SH_ERROR_INVALID_ARGUMENT);
    EXPECT_EQ(table_.remove_range(kBase + kPage, 99 * kPage), SH_ERROR_INVALID_ARGUMENT);
    EXPECT_EQ(table_.remove_range(kBase, 100 * kPage), SH_OK);
    EXPECT_EQ(table_.map(kBase, kPage, 1, pages_.data()), SH_ERROR_INVALID_ARGUMENT);
}

// Makes random calls and compares the result with a table of single addresses.
TEST_F(PageTableTest, AgreesWithASimpleTable) {
    std::map<uint64_t, sh_backend_page> reference;
    std::mt19937_64 random(3);
    for (int i = 0; i < 20000; ++i) {
        const uint64_t first = random() % 100, count = 1 + random() % 6;
        const uint64_t address = kBase + first * kPage;
        bool all = first + count <= 100, none = all;
        for (uint64_t at = first; at < first + count; ++at) {
            all &= reference.count(at) != 0;
            none &= reference.count(at) == 0;
        }
        EXPECT_EQ(table_.check_mapped(address, count * kPage) >= 0, all);
        if (random() % 2) {
            const uint64_t offset = random() % (pages_.size() - count);
            ASSERT_EQ(table_.map(address, kPage, count, pages_.data() + offset) >= 0, none);
            for (uint64_t at = 0; none && at < count; ++at) reference[first + at] = pages_[offset + at];
        } else {
            ASSERT_EQ(table_.unmap(address, kPage, count) >= 0, all);
            for (uint64_t at = first; all && at < first + count; ++at) reference.erase(at);
        }
        ASSERT_EQ(table_.mapped_bytes(), reference.size() * kPage);
        const uint64_t probe = random() % 100;
        const auto expected = reference.find(probe);
        ASSERT_EQ(table_.page_at(kBase + probe * kPage, kPage), expected == reference.end() ? 0 : expected->second);
    }
}

}  // namespace
}  // namespace stagehand::support
