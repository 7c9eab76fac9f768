// Blocks whose sources are packed: every byte, in each step, whole and part by part.
#include <algorithm>
#include <list>
#include <memory>
#include <random>
#include <vector>

#include <sys/mman.h>
#include <unistd.h>

#include "../codec/weights.h"
#include "codec/frame.h"
#include "engine.h"

namespace stagehand::test {
namespace {

using codec::FloatFormat;

// A packed tensor in memory and in a file.
struct Packed {
    Packed(FloatFormat format, uint64_t elements, uint32_t seed)
        : contents(codec::test::weights(format, elements, seed)) {
        EXPECT_TRUE(codec::pack_frame(format, contents.data(), contents.size(), 2, &frame).ok());
        EXPECT_EQ(std::fwrite(frame.data(), 1, frame.size(), file), frame.size());
        EXPECT_EQ(std::fflush(file), 0);
    }
    ~Packed() { std::fclose(file); }
    Packed(const Packed&) = delete;
    Packed& operator=(const Packed&) = delete;

    sh_segment segment(uint32_t kind) const {
        sh_segment segment = SH_SEGMENT_INIT;
        segment.kind = kind;
        segment.bytes = contents.size();
        segment.packed_bytes = frame.size();
        segment.pointer = frame.data();
        segment.file = fileno(file);
        return segment;
    }

    std::vector<uint8_t> contents, frame;
    std::FILE* file = std::tmpfile();
};

class PackedSources : public ::testing::Test {
protected:
    void SetUp() override { SUCCEEDS(sh_runtime_create(device_.get(), nullptr, &runtime_)); }
    void TearDown() override { sh_runtime_destroy(runtime_); }

    sh_block_desc block_of(const std::vector<sh_segment>& segments) const {
        sh_block_desc desc = SH_BLOCK_DESC_INIT;
        for (const sh_segment& segment : segments) desc.bytes = std::max(desc.bytes, segment.offset + segment.bytes);
        desc.segments = segments.data();
        desc.segment_count = segments.size();
        return desc;
    }
    void expect_bytes(sh_block block, const uint8_t* wanted, uint64_t bytes) {
        auto view = sh_sized<sh_view>();
        std::vector<uint8_t> found(bytes);
        view = held_view(runtime_, block);
        ASSERT_EQ(view.bytes, bytes);
        SUCCEEDS(sh_read_block(runtime_, block, SH_STREAM_HOST, 0, found.data(), bytes));
        EXPECT_TRUE(std::equal(found.begin(), found.end(), wanted));
        let_go(runtime_, block);
    }

    // Lives until the runtime is destroyed, which may still load ahead.
    Packed& packed(FloatFormat format, uint64_t elements, uint32_t seed) {
        return *tensors_.emplace_back(std::make_unique<Packed>(format, elements, seed));
    }

    std::vector<std::unique_ptr<Packed>> tensors_;
    std::list<std::vector<uint8_t>> plain_;
    TestDevice device_{{.budget_bytes = 24 * kPage}};
    sh_runtime* runtime_ = nullptr;
};

// Two packed tensors and a plain one in each block.
TEST_F(PackedSources, AreStreamed) {
    std::vector<sh_block> blocks;
    std::vector<std::vector<uint8_t>> truth;
    for (uint32_t i = 0; i < 6; i++) {
        std::vector<sh_segment> segments;
        std::vector<uint8_t>& bytes = truth.emplace_back();
        for (const uint32_t kind : {SH_SOURCE_POINTER, SH_SOURCE_FILE, SH_SOURCE_POINTER}) {
            const FloatFormat format = codec::test::kFormats[tensors_.size() % 5];
            const uint64_t elements = 2 * kPage / codec::fields_of(format).bytes() + i;
            const Packed& tensor = packed(format, elements, i);
            sh_segment& segment = segments.emplace_back(tensor.segment(kind));
            segment.offset = bytes.size();
            if (segments.size() == 3) segment.packed_bytes = 0, segment.pointer = tensor.contents.data();
            bytes.insert(bytes.end(), tensor.contents.begin(), tensor.contents.end());
        }
        const sh_block_desc desc = block_of(segments);
        SUCCEEDS(sh_register_blocks(runtime_, &desc, 1, &blocks.emplace_back()));
    }
    for (int step = 0; step < 3; step++) {
        SUCCEEDS(sh_step_begin(runtime_, nullptr));
        for (size_t i = 0; i < blocks.size(); i++) expect_bytes(blocks[i], truth[i].data(), truth[i].size());
        SUCCEEDS(sh_step_end(runtime_));
    }
    EXPECT_LE(device_.memory().peak_bytes, 24 * kPage);
}

TEST_F(PackedSources, CanBeUsedPartByPart) {
    const Packed& tensor = packed(FloatFormat::bf16, 5 * kPage / 2, 1);
    const std::vector<sh_segment> segments = {tensor.segment(SH_SOURCE_FILE)};
    const sh_block_desc desc = block_of(segments);
    sh_part_options options = SH_PART_OPTIONS_INIT;
    options.unit_bytes = 1000;
    options.largest_bytes = 2 * kPage;
    sh_part parts[8];
    for (sh_part& part : parts) part = sh_sized<sh_part>();
    uint64_t count = 0;
    SUCCEEDS(sh_register_parts(runtime_, &desc, &options, parts, 8, &count));
    ASSERT_GE(count, 3u);
    for (uint64_t i = 0; i < count; i++)
        expect_bytes(parts[i].block, tensor.contents.data() + parts[i].offset, parts[i].bytes);
}

TEST_F(PackedSources, AreRefusedWhereTheyCannotBe) {
    const Packed& tensor = packed(FloatFormat::bf16, 1000, 1);
    const auto refused = [&](auto&& change, uint32_t flags, const char* text) {
        std::vector<sh_segment> segments = {tensor.segment(SH_SOURCE_POINTER)};
        change(segments[0]);
        sh_block_desc desc = block_of(segments);
        desc.flags = flags;
        desc.name = "head";
        sh_block block = 0;
        EXPECT_REFUSED(sh_register_blocks(runtime_, &desc, 1, &block), SH_ERROR_INVALID_ARGUMENT, text);
        EXPECT_NE(why().find("head"), std::string::npos) << why();
    };
    refused([](sh_segment&) {}, SH_BLOCK_MUTABLE, "mutable");
    refused([](sh_segment& segment) { segment.kind = SH_SOURCE_FILL; }, 0, "packed");
    refused([](sh_segment& segment) { segment.kind = SH_SOURCE_DEVICE; }, 0, "packed");
    if (device_under_test() != "host") return;  // a device without contents reads no source
    refused([](sh_segment& segment) { segment.packed_bytes--; }, 0, "not a packed tensor");
    refused([](sh_segment& segment) { segment.packed_offset = 1; }, 0, "packed_offset");
}

TEST_F(PackedSources, ThatHaveChangedAreAnError) {
    Packed& tensor = packed(FloatFormat::bf16, 1000, 1);
    const std::vector<sh_segment> segments = {tensor.segment(SH_SOURCE_POINTER)};
    const sh_block_desc desc = block_of(segments);
    sh_block block = 0;
    auto view = sh_sized<sh_view>();
    SUCCEEDS(sh_register_blocks(runtime_, &desc, 1, &block));
    tensor.frame.back() ^= 1;
    EXPECT_REFUSED(sh_acquire(runtime_, block, SH_STREAM_HOST, 0, &view), SH_ERROR_SOURCE, "checksum");
    tensor.frame.back() ^= 1;
    expect_bytes(block, tensor.contents.data(), tensor.contents.size());
}

// SH_BLOCK_PACK: the registration packs the weights, and the caller's memory may go.
TEST_F(PackedSources, AreMadeOfPlainOnes) {
    std::vector<std::vector<uint8_t>> truth;
    std::vector<sh_block> blocks;
    std::mt19937 random(1);
    for (uint32_t i = 0; i < 6; i++) {
        std::vector<std::vector<uint8_t>> given;
        for (const FloatFormat format : codec::test::kFormats)
            given.push_back(codec::test::weights(format, 3 * kPage / codec::fields_of(format).bytes() / 4 + i, i));
        given.emplace_back(kPage);  // random bytes do not pack
        for (uint8_t& byte : given.back()) byte = static_cast<uint8_t>(random());
        given.push_back(given.front());  // and these have no format
        std::vector<uint8_t>& bytes = truth.emplace_back();
        std::vector<sh_segment> segments;
        for (size_t k = 0; k < given.size(); k++) {
            sh_segment& segment = segments.emplace_back(sh_segment(SH_SEGMENT_INIT));
            segment.kind = SH_SOURCE_POINTER;
            segment.pointer = given[k].data();
            segment.bytes = given[k].size();
            segment.offset = bytes.size();
            segment.format = static_cast<uint32_t>(k < 5 ? codec::test::kFormats[k] : FloatFormat::bf16);
            bytes.insert(bytes.end(), given[k].begin(), given[k].end());
        }
        segments.back().format = 0;
        plain_.push_back(given.back());
        segments.back().pointer = plain_.back().data();
        sh_block_desc desc = block_of(segments);
        desc.flags = SH_BLOCK_PACK;
        SUCCEEDS(sh_register_blocks(runtime_, &desc, 1, &blocks.emplace_back()));
        for (size_t k = 0; k + 1 < given.size(); k++) std::ranges::fill(given[k], 0xee);
    }
    for (int step = 0; step < 4; step++) {
        SUCCEEDS(sh_step_begin(runtime_, nullptr));
        for (size_t i = 0; i < blocks.size(); i++) expect_bytes(blocks[i], truth[i].data(), truth[i].size());
        SUCCEEDS(sh_step_end(runtime_));
    }
    SUCCEEDS(sh_unregister_blocks(runtime_, blocks.data(), blocks.size()));
}

TEST_F(PackedSources, AreMadeOfWhatHasAFormatOrRefused) {
    const Packed& tensor = packed(FloatFormat::bf16, 1000, 1);
    std::vector<sh_segment> segments = {tensor.segment(SH_SOURCE_POINTER)};
    sh_segment& segment = segments[0];
    segment.pointer = tensor.contents.data();
    segment.packed_bytes = 0;
    segment.format = SH_FORMAT_BF16;
    sh_block_desc desc = block_of(segments);
    sh_block block = 0;
    const auto refused = [&](const char* says) {
        EXPECT_REFUSED(sh_register_blocks(runtime_, &desc, 1, &block), SH_ERROR_INVALID_ARGUMENT, says);
    };
    refused("no SH_BLOCK_PACK");
    desc.flags = SH_BLOCK_PACK;
    segment.kind = SH_SOURCE_MAPPED;
    refused("kind");
    segment.kind = SH_SOURCE_POINTER;
    segment.packed_bytes = 100;
    refused("packed already");
    segment.packed_bytes = 0;
    segment.format = 6;
    refused("unknown format 6");
    segment.format = SH_FORMAT_F32;
    segment.bytes = 1999;
    std::vector<uint8_t> given = tensor.contents;
    segment.pointer = given.data();
    SUCCEEDS(sh_register_blocks(runtime_, &desc, 1, &block));
    std::ranges::fill(given, 0xee);
    auto view = sh_sized<sh_view>();
    std::vector<uint8_t> found(1999);
    view = held_view(runtime_, block);
    SUCCEEDS(sh_read_block(runtime_, block, SH_STREAM_HOST, 0, found.data(), found.size()));
    let_go(runtime_, block);
    EXPECT_TRUE(std::equal(found.begin(), found.end(), tensor.contents.begin()));
}

// The cuts fall within elements.
TEST_F(PackedSources, AreMadeOfParts) {
    const Packed& tensor = packed(FloatFormat::f32, 2 * kPage, 1);
    std::vector<sh_segment> segments = {tensor.segment(SH_SOURCE_POINTER)};
    std::vector<uint8_t> given = tensor.contents;
    segments[0].pointer = given.data();
    segments[0].packed_bytes = 0;
    segments[0].format = SH_FORMAT_F32;
    sh_block_desc desc = block_of(segments);
    desc.flags = SH_BLOCK_PACK;
    sh_part_options options = SH_PART_OPTIONS_INIT;
    options.unit_bytes = 1002;
    options.largest_bytes = 2 * kPage;
    sh_part parts[8];
    for (sh_part& part : parts) part = sh_sized<sh_part>();
    uint64_t count = 0;
    SUCCEEDS(sh_register_parts(runtime_, &desc, &options, parts, 8, &count));
    ASSERT_GE(count, 3u);
    std::ranges::fill(given, 0xee);
    for (uint64_t i = 0; i < count; i++)
        expect_bytes(parts[i].block, tensor.contents.data() + parts[i].offset, parts[i].bytes);
}

}  // namespace
}  // namespace stagehand::test
