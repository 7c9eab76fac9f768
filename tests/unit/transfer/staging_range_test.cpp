// Ranges of one file: contents of many allocations, each with room of its own.
#include <cstring>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

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
        folder_ = std::make_unique<StagingFolder>(path_);
    }
    void TearDown() override {
        folder_.reset();
        EXPECT_TRUE(std::filesystem::is_empty(path_));
        std::filesystem::remove_all(path_);
    }
    std::unique_ptr<StagingRange> take(uint64_t bytes) {
        std::unique_ptr<StagingRange> range;
        const Status status = folder_->take(bytes, &range);
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
    std::unique_ptr<StagingFolder> folder_;
};

TEST_F(StagingRanges, AreApartInOneFile) {
    std::vector<std::unique_ptr<StagingRange>> ranges;
    for (const uint64_t pages : {1, 300, 17, 64, 2}) {
        ranges.push_back(take(pages * kPage));
        ASSERT_NE(ranges.back(), nullptr);
        EXPECT_EQ(ranges.back()->bytes(), pages * kPage);
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

// The file lives as long as its last range.
TEST_F(StagingRanges, OutliveTheirFolder) {
    auto range = take(8 * kPage);
    ASSERT_TRUE(range);
    fill(*range, 3);
    folder_.reset();
    EXPECT_TRUE(has(*range, 3));
}

}  // namespace
}  // namespace stagehand::transfer
