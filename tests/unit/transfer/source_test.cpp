#include "transfer/source/source.h"

#include <filesystem>
#include <string>
#include <vector>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <gtest/gtest.h>

#include "temporary_file.h"
#include "transfer/source/reader.h"

namespace stagehand::transfer {
namespace {

using test::TemporaryFile;

sh_segment segment_of(uint32_t kind) {
    sh_segment segment = SH_SEGMENT_INIT;
    segment.kind = kind;
    segment.bytes = 100;
    return segment;
}

size_t open_descriptors() {
    size_t count = 0;
    for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) count++;
    return count;
}

void expect_refused(const sh_segment& segment, const char* field) {
    Source source;
    const Status status = open_source(segment, &source);
    EXPECT_EQ(status.code(), SH_ERROR_INVALID_ARGUMENT);
    EXPECT_EQ(std::string(status.text()).compare(0, std::string(field).size(), field), 0) << status.text();
}

TEST(OpenSource, NamesTheFieldThatIsWrong) {
    expect_refused(segment_of(0), "kind");
    expect_refused(segment_of(99), "kind");
    expect_refused(segment_of(SH_SOURCE_POINTER), "pointer");
    expect_refused(segment_of(SH_SOURCE_MAPPED), "pointer");
    expect_refused(segment_of(SH_SOURCE_FILL), "fill");
    sh_segment segment = segment_of(SH_SOURCE_POINTER);
    segment.pointer = &segment;
    segment.bytes = UINT64_MAX;
    expect_refused(segment, "bytes");
    segment = segment_of(SH_SOURCE_FILE);
    for (const int64_t file : {int64_t(-1), int64_t(1) << 40, int64_t(100000)}) {
        segment.file = file;
        expect_refused(segment, "file");
    }
}

TEST(OpenSource, RefusesWhatCannotBeReadAtAnOffset) {
    int ends[2];
    ASSERT_EQ(pipe(ends), 0);
    const int folder = open(".", O_RDONLY | O_DIRECTORY);
    TemporaryFile file(10);
    const int write_only = open(file.path().c_str(), O_WRONLY);
    sh_segment segment = segment_of(SH_SOURCE_FILE);
    for (const int descriptor : {ends[0], folder, write_only}) {
        segment.file = descriptor;
        expect_refused(segment, "file");
    }
    segment.file = file.descriptor();
    segment.file_offset = UINT64_MAX - 10;
    expect_refused(segment, "file_offset");
    segment.file_offset = 10;
    segment.bytes = INT64_MAX;
    expect_refused(segment, "file_offset");
    for (const int descriptor : {ends[0], ends[1], folder, write_only}) close(descriptor);
}

TEST(OpenSource, SharesTwoDescriptorsAmongAllSegmentsOfAFile) {
    TemporaryFile file(100000);
    const size_t before = open_descriptors();
    std::vector<Source> sources(10000);
    sh_segment segment = segment_of(SH_SOURCE_FILE);
    for (size_t i = 0; i < sources.size(); i++) {
        segment.file = i % 2 ? file.descriptor() : dup(file.descriptor());
        segment.file_offset = i;
        ASSERT_TRUE(open_source(segment, &sources[i]).ok());
        if (i % 2 == 0) close(static_cast<int>(segment.file));
    }
    EXPECT_LE(open_descriptors(), before + 2);
    for (Source& source : sources) close_source(&source);
    EXPECT_EQ(open_descriptors(), before);
}

TEST(OpenSource, KeepsNoDescriptorOfAFileWithoutThePackedTensor) {
    TemporaryFile file(100000);
    const size_t before = open_descriptors();
    sh_segment segment = segment_of(SH_SOURCE_FILE);
    segment.file = file.descriptor();
    segment.packed_bytes = 100000;
    Source source;
    EXPECT_FALSE(open_source(segment, &source).ok());
    EXPECT_EQ(open_descriptors(), before);
}

TEST(OpenSource, OutlivesTheCallersDescriptorAndTheFilesName) {
    const std::vector<char> bytes = test::random_bytes(5000, 3);
    int descriptor = open("source-test-gone", O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    ASSERT_EQ(write(descriptor, bytes.data(), bytes.size()), 5000);
    unlink("source-test-gone");
    sh_segment segment = segment_of(SH_SOURCE_FILE);
    segment.file = descriptor;
    segment.bytes = 5000;
    Source source;
    ASSERT_TRUE(open_source(segment, &source).ok());
    close(descriptor);
    std::vector<char> read(5000);
    Reader reader;
    const ReadRequest request = {&source, 0, read.data(), 5000};
    EXPECT_TRUE(reader.read({&request, 1}).ok());
    EXPECT_EQ(read, bytes);
    close_source(&source);
    EXPECT_EQ(source.file, -1);
}

TEST(OpenSource, TakesADescriptorThatIsOpenPastThePageCache) {
    TemporaryFile file(10001);
    const int direct = open(file.path().c_str(), O_RDONLY | O_DIRECT);
    if (direct < 0) GTEST_SKIP() << "no direct reads on this file system";
    sh_segment segment = segment_of(SH_SOURCE_FILE);
    segment.file = direct;
    segment.file_offset = 3;
    segment.bytes = 9998;
    Source source;
    ASSERT_TRUE(open_source(segment, &source).ok());
    close(direct);
    std::vector<char> read(9998);
    Reader reader;
    const ReadRequest request = {&source, 0, read.data(), 9998};
    EXPECT_TRUE(reader.read({&request, 1}).ok());
    EXPECT_TRUE(std::equal(read.begin(), read.end(), file.bytes().begin() + 3));
    close_source(&source);
}

// A file may be readable by a descriptor that was passed on, but not by its name.
class WithoutPermission {
public:
    explicit WithoutPermission(const TemporaryFile& file) : user_(geteuid()) {
        taken_ = chmod(file.path().c_str(), 0) == 0 && (user_ != 0 || seteuid(kNobody) == 0);
        taken_ = taken_ && open(file.path().c_str(), O_RDONLY | O_CLOEXEC) < 0;
    }
    ~WithoutPermission() { EXPECT_EQ(seteuid(user_), 0); }
    bool taken() const { return taken_; }

private:
    static constexpr uid_t kNobody = 65534;
    const uid_t user_;
    bool taken_ = false;
};

TEST(OpenSource, TakesADescriptorOfAFileThatCannotBeOpenedAgain) {
    for (const bool past_the_page_cache : {false, true}) {
        TemporaryFile file(1000);
        const int descriptor = open(file.path().c_str(), O_RDONLY | (past_the_page_cache ? O_DIRECT : 0));
        if (descriptor < 0) continue;  // no direct reads on this file system
        sh_segment segment = segment_of(SH_SOURCE_FILE);
        segment.file = descriptor;
        segment.bytes = 1000;
        Source source;
        {
            const WithoutPermission permission(file);
            if (!permission.taken()) GTEST_SKIP() << "this user may open every file";
            if (past_the_page_cache)
                expect_refused(segment, "file");  // such a file cannot be read at an offset
            else
                EXPECT_TRUE(open_source(segment, &source).ok());
        }
        close(descriptor);
        if (past_the_page_cache) continue;
        std::vector<char> read(1000);
        Reader reader;
        const ReadRequest request = {&source, 0, read.data(), 1000};
        EXPECT_TRUE(reader.read({&request, 1}).ok());
        EXPECT_EQ(read, file.bytes());
        close_source(&source);
    }
}

TEST(OpenSource, AllowsEmptySegments) {
    sh_segment segment = segment_of(SH_SOURCE_POINTER);
    segment.bytes = 0;
    Source source;
    EXPECT_TRUE(open_source(segment, &source).ok());
    close_source(&source);
}

}  // namespace
}  // namespace stagehand::transfer
