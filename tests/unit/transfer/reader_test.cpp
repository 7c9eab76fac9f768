#include "transfer/reader.h"

#include <atomic>
#include <cstring>
#include <random>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "platform/page_cache.h"
#include "temporary_file.h"
#include "transfer/direct_reader.h"
#include "transfer/file_reader.h"
#include "transfer/mapped_reader.h"
#include "transfer/open_file.h"
#include "transfer/uring.h"

namespace stagehand::transfer {
namespace {

using test::Mapping;
using test::random_bytes;
using test::TemporaryFile;

Source memory_source(uint32_t kind, const void* pointer, uint64_t bytes) {
    Source source;
    source.kind = kind;
    source.pointer = const_cast<void*>(pointer);
    source.bytes = bytes;
    return source;
}

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

bool has(const Status& status, const char* text) { return std::string(status.text()).find(text) != std::string::npos; }

// Reads random ranges of a source in random batches and compares them with what it holds.
void expect_same(Reader& reader, const Source& source, const std::vector<char>& bytes, uint64_t first, uint32_t seed) {
    std::mt19937_64 random(seed);
    for (int round = 0; round < 30; round++) {
        std::vector<ReadRequest> requests;
        std::vector<char> buffer(source.bytes * 2 + 64, 'x');
        uint64_t position = random() % 64;
        for (size_t count = 1 + random() % 5; count > 0; count--) {
            const uint64_t offset = random() % source.bytes;
            const uint64_t most = std::min(source.bytes - offset, buffer.size() - position);
            const uint64_t length = most == 0 ? 0 : random() % (random() % 2 ? most : std::min<uint64_t>(most, 9000)) + 1;
            requests.push_back({&source, offset, buffer.data() + position, length});
            position += length;
        }
        const Status status = reader.read(requests);
        ASSERT_TRUE(status.ok()) << status.text();
        for (const ReadRequest& request : requests)
            ASSERT_EQ(std::memcmp(request.to, bytes.data() + first + request.offset, request.bytes), 0);
        ASSERT_EQ(buffer.at(position), 'x');   // nothing is written past the end
    }
}

TEST(Reader, CopiesMemory) {
    const auto bytes = random_bytes(300001, 1);
    Reader reader;
    expect_same(reader, memory_source(SH_SOURCE_POINTER, bytes.data(), bytes.size()), bytes, 0, 11);
}

TEST(Reader, RefusesRangesBeyondTheSource) {
    const auto bytes = random_bytes(100, 1);
    const Source source = memory_source(SH_SOURCE_POINTER, bytes.data(), 100);
    char buffer[200];
    Reader reader;
    for (const auto& [offset, length] : {std::pair<uint64_t, uint64_t>{0, 101}, {100, 1}, {UINT64_MAX, 2}, {1, UINT64_MAX}}) {
        const ReadRequest request = {&source, offset, buffer, length};
        EXPECT_EQ(reader.read({&request, 1}).code(), SH_ERROR_SOURCE) << offset << " " << length;
    }
    const ReadRequest whole = {&source, 0, buffer, 100}, nothing = {&source, 100, buffer, 0};
    EXPECT_TRUE(reader.read({&whole, 1}).ok());
    EXPECT_TRUE(reader.read({&nothing, 1}).ok());
}

// Cuts a file and lets it grow again, all the time, to sizes below 1 MiB.
class Shrinker {
public:
    explicit Shrinker(TemporaryFile& file) {
        (void)file.resize(0);
        thread_ = std::thread([this, &file] {
            for (uint64_t size = 0; !stop_; size = (size + 123457) % (1 << 20)) (void)file.resize(size);
        });
    }
    ~Shrinker() {
        stop_ = true;
        thread_.join();
    }

private:
    std::atomic<bool> stop_ = false;
    std::thread thread_;
};

// Fills

int32_t fill_ramp(void* buffer, uint64_t offset, uint64_t bytes, void*) {
    for (uint64_t i = 0; i < bytes; i++) static_cast<char*>(buffer)[i] = static_cast<char>(offset + i);
    return 0;
}
int32_t fill_fails(void*, uint64_t, uint64_t, void*) { return 42; }
int32_t fill_throws(void*, uint64_t, uint64_t, void*) { throw std::runtime_error("out of paint"); }
int32_t fill_throws_a_number(void*, uint64_t, uint64_t, void*) { throw 7; }

TEST(Reader, CallsFillsForTheirRange) {
    Source source;
    source.kind = SH_SOURCE_FILL;
    source.fill = fill_ramp;
    source.bytes = 1000;
    char buffer[10];
    const ReadRequest request = {&source, 250, buffer, 10};
    Reader reader;
    ASSERT_TRUE(reader.read({&request, 1}).ok());
    for (int i = 0; i < 10; i++) EXPECT_EQ(buffer[i], static_cast<char>(250 + i));
}

TEST(Reader, ReportsFillsThatFailOrThrow) {
    Source source;
    source.kind = SH_SOURCE_FILL;
    source.bytes = 1000;
    char buffer[10];
    const ReadRequest request = {&source, 250, buffer, 10};
    Reader reader;
    source.fill = fill_fails;
    Status status = reader.read({&request, 1});
    EXPECT_EQ(status.code(), SH_ERROR_CALLBACK);
    EXPECT_TRUE(has(status, "42") && has(status, "offset 250")) << status.text();
    source.fill = fill_throws;
    status = reader.read({&request, 1});
    EXPECT_EQ(status.code(), SH_ERROR_CALLBACK);
    EXPECT_TRUE(has(status, "out of paint")) << status.text();
    source.fill = fill_throws_a_number;
    EXPECT_EQ(reader.read({&request, 1}).code(), SH_ERROR_CALLBACK);
}

// Mappings, by process_vm_readv and where a sandbox forbids it.

class MappedSource : public testing::TestWithParam<bool> {
protected:
    Reader reader_{ReaderOptions{.vm_read = GetParam()}};
};

TEST_P(MappedSource, ReadsTheSameBytes) {
    TemporaryFile file(700001);
    Mapping mapping(file.descriptor(), 700001);
    expect_same(reader_, memory_source(SH_SOURCE_MAPPED, mapping.data(), 700001), file.bytes(), 0, 12);
}

TEST_P(MappedSource, AFileThatShrankIsAnErrorAndTheRestStaysReadable) {
    TemporaryFile file(100000);
    Mapping mapping(file.descriptor(), 100000);
    const Source source = memory_source(SH_SOURCE_MAPPED, mapping.data(), 100000);
    std::vector<char> buffer(100000);
    const ReadRequest all = {&source, 0, buffer.data(), 100000}, start = {&source, 0, buffer.data(), 8192};
    ASSERT_TRUE(reader_.read({&all, 1}).ok());
    ASSERT_TRUE(file.resize(8192));
    const Status status = reader_.read({&all, 1});
    EXPECT_EQ(status.code(), SH_ERROR_SOURCE);
    EXPECT_TRUE(has(status, "wanted 100000 bytes") && has(status, "got 8192")) << status.text();
    std::fill(buffer.begin(), buffer.end(), 0);
    ASSERT_TRUE(reader_.read({&start, 1}).ok());
    EXPECT_EQ(std::memcmp(buffer.data(), file.bytes().data(), 8192), 0);
}

TEST_P(MappedSource, SurvivesAFileThatShrinksAndGrowsAllTheTime) {
    TemporaryFile file(1 << 20);
    Mapping mapping(file.descriptor(), 1 << 20);
    const Source source = memory_source(SH_SOURCE_MAPPED, mapping.data(), 1 << 20);
    Shrinker shrinker(file);
    std::vector<char> buffer(1 << 20);
    const ReadRequest all = {&source, 0, buffer.data(), 1 << 20};
    int failures = 0;
    for (int i = 0; i < 300; i++) {
        const Status status = reader_.read({&all, 1});
        if (status.ok()) continue;
        failures++;
        ASSERT_EQ(status.code(), SH_ERROR_SOURCE);
    }
    EXPECT_GT(failures, 0);
}

TEST_P(MappedSource, NamesMemoryThatIsNotThere) {
    char* gone = nullptr;
    {
        TemporaryFile file(4096);
        Mapping mapping(file.descriptor(), 4096);
        gone = mapping.data();
    }
    const Source source = memory_source(SH_SOURCE_MAPPED, gone, 4096);
    char buffer[4096];
    const ReadRequest all = {&source, 0, buffer, 4096};
    EXPECT_EQ(reader_.read({&all, 1}).code(), SH_ERROR_SOURCE);
}

INSTANTIATE_TEST_SUITE_P(Ways, MappedSource, testing::Bool(),
                         [](const auto& info) { return info.param ? std::string("VmRead") : std::string("Pipe"); });

// Files, through and past the page cache.

struct FileWay {
    const char* name;
    bool direct, uring, cachestat, cold;
};

class FileSource : public testing::TestWithParam<FileWay> {
protected:
    void SetUp() override {
        if (GetParam().uring && Uring().open(4) != 0) GTEST_SKIP() << "io_uring is not available here";
    }
    // Makes the next read of the file find it where this way wants it.
    void place(TemporaryFile& file, const Source& source) {
        if (!GetParam().cold) return;
        ASSERT_TRUE(file.forget());
        if (source.opened) source.opened->cached = false;
    }
    Reader reader_{ReaderOptions{.direct = GetParam().direct, .uring = GetParam().uring, .cachestat = GetParam().cachestat}};
};

TEST_P(FileSource, ReadsTheSameBytesWhateverTheAlignment) {
    TemporaryFile file(3000001);
    for (const uint64_t first : {uint64_t(0), uint64_t(1), uint64_t(4096), uint64_t(12345)}) {
        Source source = file_source(file, first, 3000001 - first);
        place(file, source);
        expect_same(reader_, source, file.bytes(), first, static_cast<uint32_t>(first));
        close_source(&source);
    }
}

TEST_P(FileSource, ReadsAlignedRangesStraightToTheirPlace) {
    TemporaryFile file(4 << 20);
    Source source = file_source(file, 100, (4 << 20) - 100);
    place(file, source);
    char* const memory = static_cast<char*>(std::aligned_alloc(4096, 5 << 20));
    const ReadRequest whole = {&source, 0, memory + 100, (4 << 20) - 100};
    const Status status = reader_.read({&whole, 1});
    EXPECT_TRUE(status.ok()) << status.text();
    EXPECT_EQ(std::memcmp(memory + 100, file.bytes().data() + 100, (4 << 20) - 100), 0);
    const bool past_the_cache = GetParam().cold && GetParam().direct && source.direct_file >= 0;
    EXPECT_EQ(platform::in_page_cache(file.descriptor(), 1 << 20, 1 << 20), !past_the_cache);
    std::free(memory);
    close_source(&source);
}

TEST_P(FileSource, ReadsHolesAsZeros) {
    TemporaryFile file(5000);
    ASSERT_TRUE(file.resize(2 << 20));
    Source source = file_source(file, 0, 2 << 20);
    place(file, source);
    std::vector<char> expected = file.bytes();
    expected.resize(2 << 20);
    expect_same(reader_, source, expected, 0, 5);
    close_source(&source);
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
        EXPECT_TRUE(has(status, "file shrank") && has(status, file.path().c_str()) && has(status, "wanted") && has(status, "got"))
            << status.text();
        place(file, source);
        EXPECT_EQ(reader_.read({&start, 1}).ok(), left >= 3000) << left;
    }
    close_source(&source);
}

TEST_P(FileSource, SurvivesAFileThatShrinksAndGrowsAllTheTime) {
    TemporaryFile file(1 << 20);
    Source source = file_source(file, 0, 1 << 20);
    Shrinker shrinker(file);
    std::vector<char> buffer(1 << 20);
    const ReadRequest all = {&source, 0, buffer.data(), 1 << 20};
    int failures = 0;
    for (int i = 0; i < 100; i++) {
        place(file, source);
        const Status status = reader_.read({&all, 1});
        if (status.ok()) continue;
        failures++;
        ASSERT_EQ(status.code(), SH_ERROR_SOURCE) << status.text();
    }
    EXPECT_GT(failures, 0);
    close_source(&source);
}

INSTANTIATE_TEST_SUITE_P(
    Ways, FileSource,
    testing::Values(FileWay{"Cached", true, true, true, false}, FileWay{"CachedSampled", true, true, false, false},
                    FileWay{"DirectUring", true, true, true, true}, FileWay{"DirectUringSampled", true, true, false, true},
                    FileWay{"DirectOneByOne", true, false, true, true}, FileWay{"Buffered", false, false, true, true}),
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

TEST(FileReader, JoinsNeighboursOfOneFile) {
    TemporaryFile file(100000);
    std::vector<Source> sources;
    for (uint64_t i = 0; i < 1000; i++) sources.push_back(file_source(file, i * 100, 100));
    std::vector<char> buffer(100000);
    std::vector<ReadRequest> requests;
    for (uint64_t i = 0; i < 1000; i++) requests.push_back({&sources[i], 0, buffer.data() + i * 100, 100});
    Reader reader;
    ASSERT_TRUE(reader.read(requests).ok());
    EXPECT_EQ(buffer, file.bytes());
    for (Source& source : sources) close_source(&source);
}

TEST(FileReader, ForgetsWhatItHadCollectedWhenAnotherSourceFails) {
    TemporaryFile file(1000);
    Source good = file_source(file, 0, 1000);
    Source bad;
    bad.kind = SH_SOURCE_FILL;
    bad.fill = fill_fails;
    bad.bytes = 10;
    Reader reader;
    char other[10];
    {
        std::vector<char> freed(1000);
        const ReadRequest requests[] = {{&good, 0, freed.data(), 1000}, {&bad, 0, other, 10}};
        EXPECT_EQ(reader.read(requests).code(), SH_ERROR_CALLBACK);
    }
    std::vector<char> buffer(1000);   // the freed buffer is not written any more
    const ReadRequest request = {&good, 0, buffer.data(), 1000};
    EXPECT_TRUE(reader.read({&request, 1}).ok());
    EXPECT_EQ(buffer, file.bytes());
    close_source(&good);
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
