// Sources in files, through and past the page cache.
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include <sys/resource.h>

#include <gtest/gtest.h>

#include <stagehand/base.h>

#include "reader_fixture.h"
#include "transfer/source/direct_reader.h"
#include "transfer/source/file_reader.h"
#include "transfer/source/open_file.h"
#include "transfer/source/uring.h"

namespace stagehand::transfer {
namespace {

using test::expect_same;
using test::has;
using test::random_bytes;
using test::TemporaryFile;

Source file_source(const TemporaryFile& file, uint64_t offset, uint64_t bytes) {
    sh_segment segment = SH_SEGMENT_INIT;
    segment.kind = SH_SOURCE_FILE;
    segment.file = file.descriptor();
    segment.file_offset = offset;
    segment.bytes = bytes;
    Source source;
    EXPECT_TRUE(open_source(segment, &source).ok());
    return source;
}

struct FileWay {
    const char* name;
    bool direct, uring, cachestat, cold;
};

class FileSource : public testing::TestWithParam<FileWay> {
protected:
    void SetUp() override {
        if (GetParam().uring && Uring().open(4) != 0) GTEST_SKIP() << "io_uring is not available here";
    }
    // Makes the next read of the file find the bytes where this way of reading needs them.
    void place(TemporaryFile& file, const Source& source) {
        if (!GetParam().cold) return;
        ASSERT_TRUE(file.forget());
        if (source.opened) source.opened->cached = false;
    }
    Reader reader_{
        ReaderOptions{.direct = GetParam().direct, .uring = GetParam().uring, .cachestat = GetParam().cachestat}};
};

TEST_P(FileSource, ReadsTheSameBytesWhateverTheAlignment) {
    TemporaryFile file(1500001);
    for (const uint64_t first : {uint64_t(0), uint64_t(1), uint64_t(4096), uint64_t(12345)}) {
        Source source = file_source(file, first, 1500001 - first);
        place(file, source);
        expect_same(reader_, source, file.bytes(), first, static_cast<uint32_t>(first));
        close_source(&source);
    }
}

TEST_P(FileSource, AFileThatShrankIsAnErrorThatNamesIt) {
    TemporaryFile file(1 << 20);
    Source source = file_source(file, 1000, (1 << 20) - 1000);
    std::vector<char> buffer(1 << 20);
    const ReadRequest all = {&source, 0, buffer.data(), source.bytes}, start = {&source, 0, buffer.data(), 2000};
    for (const uint64_t left : {uint64_t(700001), uint64_t(4096), uint64_t(3000), uint64_t(0)}) {
        ASSERT_TRUE(file.resize(left));
        place(file, source);
        const Status status = reader_.read({&all, 1});
        EXPECT_EQ(status.code(), SH_ERROR_SOURCE);
        EXPECT_TRUE(has(status, "file shrank") && has(status, file.path().c_str()) && has(status, "wanted") &&
                    has(status, "got"))
            << status.text();
        place(file, source);
        EXPECT_EQ(reader_.read({&start, 1}).ok(), left >= 3000) << left;
    }
    close_source(&source);
}

INSTANTIATE_TEST_SUITE_P(Ways, FileSource,
                         testing::Values(FileWay{"Cached", true, true, true, false},
                                         FileWay{"CachedSampled", true, true, false, false},
                                         FileWay{"DirectUring", true, true, true, true},
                                         FileWay{"DirectUringSampled", true, true, false, true},
                                         FileWay{"DirectOneByOne", true, false, true, true},
                                         FileWay{"Buffered", false, false, true, true}),
                         [](const auto& info) { return std::string(info.param.name); });

TEST(FileSourceOnTmpfs, IsReadToo) {
    if (access("/dev/shm", W_OK) != 0) GTEST_SKIP() << "no /dev/shm";
    char path[] = "/dev/shm/stagehand-test-XXXXXX";
    const int descriptor = mkostemp(path, O_CLOEXEC);
    ASSERT_GE(descriptor, 0);
    unlink(path);
    const auto bytes = random_bytes(200001, 9);
    ASSERT_EQ(write(descriptor, bytes.data(), bytes.size()), 200001);
    sh_segment segment = SH_SEGMENT_INIT;
    segment.kind = SH_SOURCE_FILE;
    segment.file = descriptor;
    segment.bytes = bytes.size();
    Source source;
    ASSERT_TRUE(open_source(segment, &source).ok());
    close(descriptor);
    Reader reader;
    expect_same(reader, source, bytes, 0, 4);
    close_source(&source);
}

TEST(CutDirect, CoversEveryByteOnceWithAlignedReads) {
    std::mt19937_64 random(8);
    OpenFile file;
    std::vector<char> memory(3 << 20);
    for (int round = 0; round < 500; round++) {
        file.offset_alignment = 512u << random() % 4;
        file.memory_alignment = 4u << random() % 11;
        const uint64_t bytes = 1 + random() % (round % 2 ? 3000000 : 9000);
        const FileRange range = {&file, -1, -1, random() % 100000, memory.data() + random() % 5000, bytes};
        std::vector<DirectRead> reads;
        cut_direct(range, &reads);
        uint64_t at = range.offset;
        for (const DirectRead& read : reads) {
            ASSERT_EQ(read.offset % file.offset_alignment, 0u);
            ASSERT_EQ(read.bytes % file.offset_alignment, 0u);
            ASSERT_EQ(read.offset + read.skip, at);
            ASSERT_EQ(read.to, range.to + (at - range.offset));
            ASSERT_LE(read.skip + read.wanted, read.bytes);
            if (read.in_place) {
                ASSERT_EQ(reinterpret_cast<uint64_t>(read.to) % file.memory_alignment, 0u);
                ASSERT_EQ(read.wanted, read.bytes);
            } else {
                ASSERT_LE(read.bytes, uint64_t(64) << 10);
            }
            at += read.wanted;
        }
        ASSERT_EQ(at, range.offset + bytes);
    }
}

// A reader tries io_uring only once if the system does not have it.
TEST(DirectReader, LooksForIoUringOnce) {
    TemporaryFile file(20000);
    Source source = file_source(file, 0, 20000);
    if (source.direct_file < 0) {
        close_source(&source);
        GTEST_SKIP() << "no direct reads on this file system";
    }
    struct rlimit before = {};
    ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &before), 0);
    const struct rlimit none = {0, before.rlim_max};
    int lines = 0;
    const auto count = [](int32_t, const char* line, void* counted) {
        *static_cast<int*>(counted) += std::strstr(line, "io_uring") != nullptr;
    };
    ASSERT_EQ(sh_set_log(SH_LOG_INFO, count, &lines), SH_OK);
    std::vector<char> buffer(20000);
    {
        DirectReader reader(true);
        const FileRange range = {source.opened, source.file, source.direct_file, 0, buffer.data(), 20000};
        EXPECT_EQ(setrlimit(RLIMIT_NOFILE, &none), 0);  // a ring takes a descriptor
        for (int k = 0; k < 3; k++) EXPECT_TRUE(reader.read({&range, 1}).ok());
        EXPECT_EQ(setrlimit(RLIMIT_NOFILE, &before), 0);
    }
    ASSERT_EQ(sh_set_log(0, nullptr, nullptr), SH_OK);
    EXPECT_EQ(lines, 1);
    EXPECT_EQ(buffer, file.bytes());
    close_source(&source);
}

TEST(Uring, SaysWhenItIsNotThere) {
    Uring uring;
    const int error = uring.open(8);
#if STAGEHAND_HAVE_LIBURING
    if (error != 0) GTEST_SKIP() << "io_uring is not available here: " << std::strerror(error);
    TemporaryFile file(4096);
    char buffer[100];
    uring.add_read(3, file.descriptor(), buffer, 100, 50);
    uint32_t tag = 0;
    int64_t result = 0;
    uring.wait(&tag, &result);
    EXPECT_EQ(tag, 3u);
    EXPECT_EQ(result, 100);
    EXPECT_EQ(std::memcmp(buffer, file.bytes().data() + 50, 100), 0);
#else
    EXPECT_NE(error, 0);
#endif
}

}  // namespace
}  // namespace stagehand::transfer
