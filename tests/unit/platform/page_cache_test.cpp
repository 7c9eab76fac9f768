#include "platform/page_cache.h"

#include <cerrno>
#include <string>
#include <vector>

#include <fcntl.h>
#include <unistd.h>

#include <gtest/gtest.h>

namespace stagehand::platform {
namespace {

constexpr uint64_t kBytes = 8 << 20;

class PageCache : public testing::TestWithParam<CacheProbe> {
protected:
    void SetUp() override {
        char path[] = "page-cache-test-XXXXXX";
        file_ = mkostemp(path, O_CLOEXEC);
        ASSERT_GE(file_, 0);
        unlink(path);
        const std::vector<char> bytes(kBytes, 3);
        ASSERT_EQ(write(file_, bytes.data(), kBytes), static_cast<ssize_t>(kBytes));
        ASSERT_EQ(fsync(file_), 0);
    }
    void TearDown() override { close(file_); }
    // The kernel drops no page that it is still busy with, so that one call may not be enough.
    void forget() {
        for (int k = 0; k < 1000 && (k == 0 || cached(0, kBytes) || cached(kBytes / 2, 1 << 20)); k++) {
            if (k) usleep(1000);
            ASSERT_EQ(fsync(file_), 0);
            ASSERT_EQ(posix_fadvise(file_, 0, 0, POSIX_FADV_DONTNEED), 0);
        }
    }
    bool cached(uint64_t offset, uint64_t bytes) {
        return in_page_cache(file_, offset, bytes, GetParam()) == Cached::kYes;
    }

    int file_ = -1;
};

TEST_P(PageCache, TellsWhatIsThereAndWhatIsNot) {
    EXPECT_TRUE(cached(0, kBytes));
    EXPECT_TRUE(cached(12345, 1));
    forget();
    EXPECT_FALSE(cached(0, kBytes));
    EXPECT_FALSE(cached(kBytes / 2, 1 << 20));
}

TEST_P(PageCache, ARangeWithoutItsEndIsNotThere) {
    forget();
    std::vector<char> buffer(1 << 20);
    ASSERT_EQ(posix_fadvise(file_, 0, 0, POSIX_FADV_RANDOM), 0);  // no read-ahead
    ASSERT_EQ(pread(file_, buffer.data(), buffer.size(), 0), 1 << 20);
    EXPECT_TRUE(cached(0, 1 << 20));
    EXPECT_FALSE(cached(0, 6 << 20));
}

TEST_P(PageCache, NothingIsBeyondTheEnd) {
    EXPECT_FALSE(cached(kBytes - 1, 4097));
    EXPECT_FALSE(cached(UINT64_MAX - 5, 10));
    EXPECT_FALSE(cached(0, UINT64_MAX));
    EXPECT_FALSE(cached(0, 0));
}

TEST_P(PageCache, ADescriptorThatIsNoFileIsNotThere) { EXPECT_EQ(in_page_cache(-1, 0, 10, GetParam()), Cached::kNo); }

TEST(PageCacheProbe, AFileSystemThatDoesNotTell) {
    const int file = open("/proc/self/maps", O_RDONLY | O_CLOEXEC);
    ASSERT_GE(file, 0);
    EXPECT_EQ(in_page_cache(file, 0, 10, CacheProbe::kSample), Cached::kUnknown);
    close(file);
}

INSTANTIATE_TEST_SUITE_P(Probes, PageCache, testing::Values(CacheProbe::kBest, CacheProbe::kSample),
                         [](const auto& info) {
                             return std::string(info.param == CacheProbe::kBest ? "Best" : "Sample");
                         });

using ReadCached = PageCache;

TEST_P(ReadCached, ReadsWhatIsThereAndStopsAtTheEnd) {
    std::vector<char> buffer(kBytes);
    EXPECT_EQ(read_cached(file_, buffer.data(), kBytes, 0), static_cast<ssize_t>(kBytes));
    EXPECT_EQ(buffer, std::vector<char>(kBytes, 3));
    EXPECT_EQ(read_cached(file_, buffer.data(), 100, kBytes - 10), 10);
    EXPECT_EQ(read_cached(file_, buffer.data(), 100, kBytes + 10), 0);
    EXPECT_EQ(read_cached(-1, buffer.data(), 100, 0), -EBADF);
    forget();
    EXPECT_LT(read_cached(file_, buffer.data(), kBytes, 0), static_cast<ssize_t>(kBytes));
}

INSTANTIATE_TEST_SUITE_P(Once, ReadCached, testing::Values(CacheProbe::kBest));

}  // namespace
}  // namespace stagehand::platform
