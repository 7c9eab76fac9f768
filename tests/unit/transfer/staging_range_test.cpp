// Ranges of one file: contents of many allocations, each with room of its own.
#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include <sys/resource.h>
#include <sys/stat.h>

#include <gtest/gtest.h>

#include "transfer/host/file_move.h"
#include "transfer/host/staging_file.h"

namespace stagehand::transfer {
namespace {

constexpr uint64_t kPage = 4096;

class StagingRanges : public testing::Test {
protected:
    void SetUp() override {
        std::string name = testing::TempDir() + "stagehand-ranges-XXXXXX";
        ASSERT_TRUE(mkdtemp(name.data()));
        path_ = name;
    }
    void TearDown() override {
        EXPECT_TRUE(std::filesystem::is_empty(path_));
        std::filesystem::remove_all(path_);
    }
    std::unique_ptr<StagingRange> take(uint64_t bytes) {
        std::unique_ptr<StagingRange> range;
        const Status status = files_.take(path_, bytes, &range);
        EXPECT_TRUE(status.ok()) << status.text();
        return range;
    }
    // Page by page, so that a direct write takes it.
    static void fill(StagingRange& range, int value) {
        const std::unique_ptr<char, decltype(&std::free)> memory(
            static_cast<char*>(std::aligned_alloc(kPage, range.bytes())), std::free);
        std::memset(memory.get(), value, range.bytes());
        FileMove move;
        EXPECT_TRUE(move.write(range, memory.get(), range.bytes(), 0).ok());
    }
    static bool has(StagingRange& range, int value) {
        const std::unique_ptr<char, decltype(&std::free)> memory(static_cast<char*>(std::aligned_alloc(kPage, kPage)),
                                                                 std::free);
        FileMove move;
        for (uint64_t at = 0; at < range.bytes(); at += kPage) {
            if (!move.read(range, memory.get(), kPage, at).ok()) return false;
            for (uint64_t i = 0; i < kPage; i++)
                if (memory.get()[i] != static_cast<char>(value)) return false;
        }
        return true;
    }
    static uint64_t room(StagingRange& range) {
        struct stat info = {};
        EXPECT_EQ(fstat(range.file().descriptor(), &info), 0);
        return static_cast<uint64_t>(info.st_blocks) * 512;
    }

    std::string path_;
    StagingFiles files_;
};

TEST_F(StagingRanges, AreApartInOneFile) {
    std::vector<std::unique_ptr<StagingRange>> ranges;
    for (const uint64_t pages : {1, 300, 17, 64, 2}) {
        ranges.push_back(take(pages * kPage));
        ASSERT_NE(ranges.back(), nullptr);
        EXPECT_EQ(ranges.back()->bytes(), pages * kPage);
        EXPECT_EQ(ranges.back()->begin() % StagingFile::kAlignment, 0u);
        EXPECT_EQ(ranges.back()->file().descriptor(), ranges.front()->file().descriptor());
    }
    for (size_t i = 0; i < ranges.size(); i++) fill(*ranges[i], static_cast<int>(i) + 1);
    for (size_t i = 0; i < ranges.size(); i++) EXPECT_TRUE(has(*ranges[i], static_cast<int>(i) + 1)) << i;
}

TEST_F(StagingRanges, GiveTheirRoomBack) {
    auto first = take(256 * kPage), second = take(128 * kPage);
    ASSERT_TRUE(first && second);
    fill(*first, 1);
    fill(*second, 2);
    EXPECT_GE(room(*second), 384 * kPage);
    first.reset();
    EXPECT_LT(room(*second), 256 * kPage);
    EXPECT_TRUE(has(*second, 2));
}

// However often ranges of other sizes come and go, the file grows no further than what is used at once.
TEST_F(StagingRanges, ReuseTheRoomOfOthers) {
    constexpr uint64_t kUnit = StagingFile::kAlignment;
    auto stays = take(kUnit);
    std::vector<std::unique_ptr<StagingRange>> ranges(6);
    uint64_t end = 0;
    for (uint64_t k = 0; k < 200; k++) {
        std::unique_ptr<StagingRange>& range = ranges[k * 7 % ranges.size()];
        range.reset();
        range = take((1 + k * 5 % 8) * kUnit - 100 * (k % 3));
        ASSERT_TRUE(range);
        end = std::max(end, range->begin() + range->bytes());
        EXPECT_EQ(range->file().descriptor(), stays->file().descriptor());
        for (const auto& other : ranges) {
            if (!other || other == range) continue;
            EXPECT_TRUE(other->begin() + other->bytes() <= range->begin() ||
                        range->begin() + range->bytes() <= other->begin());
        }
    }
    ranges.clear();
    EXPECT_LE(end, 100 * kUnit) << "48 are used at once";
    EXPECT_EQ(take(end - kUnit)->begin(), kUnit) << "all parts are one again";
}

// The limit is that of a file, not of all of them. A call beyond it would end the process.
TEST_F(StagingRanges, GoIntoAnotherFileIfOneIsTooLarge) {
    struct rlimit before = {};
    ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &before), 0);
    struct rlimit small = before;
    small.rlim_cur = 1024 * kPage;
    ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &small), 0);
    const auto first = take(800 * kPage), second = take(800 * kPage);
    std::unique_ptr<StagingRange> large;
    EXPECT_EQ(files_.take(path_, 2000 * kPage, &large).code(), SH_ERROR_IO);
    EXPECT_EQ(setrlimit(RLIMIT_FSIZE, &before), 0);
    ASSERT_TRUE(first && second);
    EXPECT_NE(first->file().descriptor(), second->file().descriptor());
}

TEST_F(StagingRanges, AreInTheFolderThatIsNamed) {
    const auto first = take(kPage);
    std::unique_ptr<StagingRange> other;
    EXPECT_EQ(files_.take(path_ + "/missing", kPage, &other).code(), SH_ERROR_IO);
    ASSERT_TRUE(files_.take(testing::TempDir(), kPage, &other).ok());
    EXPECT_EQ(other->file().folder(), testing::TempDir());
    EXPECT_NE(first->file().descriptor(), other->file().descriptor());
}

}  // namespace
}  // namespace stagehand::transfer
