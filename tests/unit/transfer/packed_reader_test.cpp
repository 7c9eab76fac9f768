// Packed tensors as sources, from memory, a mapped file and a file.
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "../codec/weights.h"
#include "codec/frame.h"
#include "reader_fixture.h"

namespace stagehand::transfer {
namespace {

using codec::FloatFormat;
using codec::test::any_bits;
using codec::test::weights;
using test::expect_same;
using test::has;

constexpr uint64_t kBefore = 4711;  // bytes before the packed tensor

// A packed tensor behind other bytes, in memory and in a file.
class PackedTensor {
public:
    PackedTensor(FloatFormat format, const std::vector<uint8_t>& contents)
        : contents(contents.begin(), contents.end()) {
        std::vector<uint8_t> frame;
        EXPECT_TRUE(codec::pack_frame(format, contents.data(), contents.size(), 1, &frame).ok());
        bytes.assign(kBefore, 'b');
        bytes.insert(bytes.end(), frame.begin(), frame.end());
        store();
    }
    ~PackedTensor() { std::fclose(file_); }
    PackedTensor(const PackedTensor&) = delete;
    PackedTensor& operator=(const PackedTensor&) = delete;

    // Writes the bytes to the file, which is mapped.
    void store() {
        std::rewind(file_);
        ASSERT_EQ(std::fwrite(bytes.data(), 1, bytes.size(), file_), bytes.size());
        ASSERT_EQ(std::fflush(file_), 0);
        ASSERT_EQ(ftruncate(fileno(file_), static_cast<off_t>(bytes.size())), 0);
        if (!mapping_) mapping_ = std::make_unique<test::Mapping>(fileno(file_), bytes.size());
    }
    bool shrink(uint64_t size) { return ftruncate(fileno(file_), static_cast<off_t>(size)) == 0; }

    sh_segment segment(uint32_t kind, uint64_t offset, uint64_t count) const {
        sh_segment segment = SH_SEGMENT_INIT;
        segment.kind = kind;
        segment.bytes = count;
        segment.packed_bytes = bytes.size() - kBefore;
        segment.packed_offset = offset;
        segment.file = fileno(file_);
        segment.file_offset = kBefore;
        segment.pointer = (kind == SH_SOURCE_MAPPED ? mapping_->data() : bytes.data()) + kBefore;
        return segment;
    }
    sh_segment segment(uint32_t kind) const { return segment(kind, 0, contents.size()); }

    std::vector<char> contents, bytes;

private:
    std::FILE* file_ = std::tmpfile();
    std::unique_ptr<test::Mapping> mapping_;
};

class Opened {
public:
    explicit Opened(const sh_segment& segment) : status(open_source(segment, &source)) {}
    ~Opened() { close_source(&source); }
    Opened(const Opened&) = delete;
    Opened& operator=(const Opened&) = delete;

    Source source;
    const Status status;
};

constexpr uint32_t kKinds[] = {SH_SOURCE_POINTER, SH_SOURCE_MAPPED, SH_SOURCE_FILE};

class PackedSource : public testing::TestWithParam<uint32_t> {};

TEST_P(PackedSource, GivesItsContents) {
    for (const FloatFormat format : codec::test::kFormats) {
        // Several chunks, of which one is not whole.
        const PackedTensor tensor(format, weights(format, 2 * 262'144 + 8192 + 3, 1));
        Opened opened(tensor.segment(GetParam()));
        ASSERT_TRUE(opened.status.ok()) << opened.status.text();
        Reader reader;
        expect_same(reader, opened.source, tensor.contents, 0, 3);
    }
}

TEST_P(PackedSource, GivesAPartOfItsContents) {
    const PackedTensor tensor(FloatFormat::bf16, any_bits(FloatFormat::bf16, 300'000, 1));
    const uint64_t first = 524'288 - 1001;
    Opened opened(tensor.segment(GetParam(), first, 5000));
    ASSERT_TRUE(opened.status.ok()) << opened.status.text();
    Reader reader;
    expect_same(reader, opened.source, tensor.contents, first, 4);
}

TEST_P(PackedSource, RefusesWhatIsNoPackedTensor) {
    PackedTensor tensor(FloatFormat::bf16, weights(FloatFormat::bf16, 1000, 1));
    tensor.bytes[kBefore] = 'X';
    tensor.store();
    const Opened opened(tensor.segment(GetParam()));
    EXPECT_EQ(opened.status.code(), SH_ERROR_INVALID_ARGUMENT);
    EXPECT_TRUE(has(opened.status, "SHPK")) << opened.status.text();
    sh_segment shorter = tensor.segment(GetParam());
    shorter.packed_bytes = 10;
    EXPECT_EQ(Opened(shorter).status.code(), SH_ERROR_INVALID_ARGUMENT);
}

TEST_P(PackedSource, RefusesRangesBeyondItsContents) {
    const PackedTensor tensor(FloatFormat::bf16, weights(FloatFormat::bf16, 1000, 1));
    for (const auto& [offset, bytes] :
         {std::pair<uint64_t, uint64_t>{0, 2001}, {2000, 1}, {1, 2000}, {UINT64_MAX, 2}, {2001, 0}}) {
        const Opened opened(tensor.segment(GetParam(), offset, bytes));
        EXPECT_EQ(opened.status.code(), SH_ERROR_INVALID_ARGUMENT) << offset << ' ' << bytes;
        EXPECT_TRUE(has(opened.status, "packed_offset")) << opened.status.text();
    }
    EXPECT_TRUE(Opened(tensor.segment(GetParam(), 2000, 0)).status.ok());
}

TEST_P(PackedSource, TellsWhenItsBytesHaveChanged) {
    PackedTensor tensor(FloatFormat::f16, weights(FloatFormat::f16, 600'000, 1));
    Opened opened(tensor.segment(GetParam()));
    ASSERT_TRUE(opened.status.ok()) << opened.status.text();
    tensor.bytes.back() ^= 1;
    tensor.store();
    std::vector<char> buffer(opened.source.bytes);
    Reader reader;
    const ReadRequest all = {&opened.source, 0, buffer.data(), buffer.size()};
    const Status status = reader.read({&all, 1});
    EXPECT_EQ(status.code(), SH_ERROR_SOURCE);
    EXPECT_TRUE(has(status, "checksum of chunk 2")) << status.text();
    const ReadRequest before = {&opened.source, 0, buffer.data(), 524'288};
    EXPECT_TRUE(reader.read({&before, 1}).ok()) << "the chunks before it are whole";
    if (GetParam() == SH_SOURCE_POINTER) return;
    ASSERT_TRUE(tensor.shrink(4096));
    EXPECT_EQ(reader.read({&before, 1}).code(), SH_ERROR_SOURCE);
    EXPECT_EQ(Opened(tensor.segment(GetParam())).status.code(), SH_ERROR_SOURCE) << "its index cannot be read";
}

INSTANTIATE_TEST_SUITE_P(Kinds, PackedSource, testing::ValuesIn(kKinds), [](const auto& kind) {
    return std::string(kind.param == SH_SOURCE_POINTER ? "memory" : kind.param == SH_SOURCE_MAPPED ? "mapped" : "file");
});

}  // namespace
}  // namespace stagehand::transfer
