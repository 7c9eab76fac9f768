#include <cstring>
#include <stdexcept>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "reader_fixture.h"

namespace stagehand::transfer {
namespace {

using test::expect_same;
using test::has;
using test::Mapping;
using test::random_bytes;
using test::Shrinker;
using test::TemporaryFile;

Source memory_source(uint32_t kind, const void* pointer, uint64_t bytes) {
    Source source;
    source.kind = kind;
    source.pointer = const_cast<void*>(pointer);
    source.bytes = bytes;
    return source;
}

TEST(Reader, RefusesRangesBeyondTheSource) {
    const auto bytes = random_bytes(100, 1);
    const Source source = memory_source(SH_SOURCE_POINTER, bytes.data(), 100);
    char buffer[200];
    Reader reader;
    for (const auto& [offset, length] :
         {std::pair<uint64_t, uint64_t>{0, 101}, {100, 1}, {UINT64_MAX, 2}, {1, UINT64_MAX}}) {
        const ReadRequest request = {&source, offset, buffer, length};
        EXPECT_EQ(reader.read({&request, 1}).code(), SH_ERROR_SOURCE) << offset << " " << length;
    }
    const ReadRequest whole = {&source, 0, buffer, 100}, nothing = {&source, 100, buffer, 0};
    EXPECT_TRUE(reader.read({&whole, 1}).ok());
    EXPECT_TRUE(reader.read({&nothing, 1}).ok());
}

// Fills

int32_t fill_throws(void*, uint64_t, uint64_t, void*) { throw std::runtime_error("out of paint"); }
int32_t fill_throws_a_number(void*, uint64_t, uint64_t, void*) { throw 7; }

TEST(Reader, ReportsFillsThatFailOrThrow) {
    Source source;
    source.kind = SH_SOURCE_FILL;
    source.bytes = 1000;
    char buffer[10];
    const ReadRequest request = {&source, 250, buffer, 10};
    Reader reader;
    source.fill = test::fill_fails;
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

}  // namespace
}  // namespace stagehand::transfer
