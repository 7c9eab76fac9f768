// Blocks that get other sources in an update, and packed blocks that the engine changes on the device.
#include <algorithm>
#include <atomic>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "device_bytes.h"
#include "device_under_test.h"
#include "host/host_backend.h"
#include "unpacking_fixture.h"

namespace stagehand::test {
namespace {

const uint64_t kElements = kDeviceMiB + 3;

class ReplacedSources : public UnpackingTest {
protected:
    // A block's memory, which the engine keeps or scribbles over.
    using Memory = std::vector<uint8_t>;

    static Memory contents(uint8_t seed) { return weights(FloatFormat::bf16, kElements, seed); }
    static sh_segment segment_of(const Memory& memory, uint32_t format = SH_FORMAT_BF16) {
        sh_segment segment = memory_segment(memory.data(), memory.size(), format);
        return segment;
    }
    void add(const sh_segment& segment, uint32_t flags) {
        sh_block_desc desc = SH_BLOCK_DESC_INIT;
        desc.segments = &segment;
        desc.segment_count = 1;
        desc.bytes = segment.bytes;
        desc.flags = flags;
        const std::string name = "layer " + std::to_string(blocks_.size());
        desc.name = name.c_str();
        SUCCEEDS(sh_register_blocks(runtime_, &desc, 1, &blocks_.emplace_back()));
    }
    // Packed blocks whose memory the engine has freed. They stay packed on the device from the second step on.
    void add_packed(int count) {
        for (int i = 0; i < count; i++) {
            Memory memory = contents(static_cast<uint8_t>(i));
            add(segment_of(memory), SH_BLOCK_PACK);
            truth_.push_back(memory);
            std::ranges::fill(memory, 0xee);
        }
        set_schedule();
    }
    void replace_with(size_t i, Memory memory) {
        const sh_segment segment = segment_of(memory);
        SUCCEEDS(sh_source_update_begin(runtime_, &blocks_[i], 1));
        SUCCEEDS(sh_source_replace(runtime_, blocks_[i], &segment, 1));
        truth_[i] = memory;
        std::ranges::fill(memory, 0xee);
        SUCCEEDS(sh_source_update_end(runtime_, &blocks_[i], 1));
    }
    void steps(int count) {
        for (int i = 0; i < count; i++) step(runtime_);
    }
    Memory read(const sh_view& view) {
        Memory bytes(view.bytes);
        EXPECT_SUCCEEDS(sh_read_block(runtime_, view.block, SH_STREAM_HOST, 0, bytes.data(), bytes.size()));
        return bytes;
    }
    uint64_t plans() { return stats(runtime_).plans; }
    uint64_t brought_by(int count) {
        const uint64_t before = stats(runtime_).bytes_to_device;
        steps(count);
        return (stats(runtime_).bytes_to_device - before) / static_cast<uint64_t>(count);
    }
};

TEST_F(ReplacedSources, PackedBlocksGetNewContents) {
    add_packed(19);
    steps(2);
    EXPECT_GT(plan().packed_resident_bytes, 0u);
    for (int round = 0; round < 3; round++) {
        for (const size_t i : {0, 7, 18}) replace_with(i, contents(static_cast<uint8_t>(100 + 10 * round + i)));
        const uint64_t before = plans();
        steps(2);
        EXPECT_GT(plans(), before) << "the new weights may take other memory";
        EXPECT_GT(plan().packed_resident_bytes, 0u);
        EXPECT_LT(brought_by(2), kDeviceMiB) << "they stay on the device, too";
    }
    // Weights that cannot be packed, and others again.
    Memory random(truth_[3].size());
    for (size_t k = 0; k < random.size(); k++) random[k] = static_cast<uint8_t>((k * 2654435761u) >> 13);
    replace_with(3, random);
    steps(2);
    replace_with(3, contents(200));
    steps(2);
    SUCCEEDS(sh_unregister_blocks(runtime_, blocks_.data(), blocks_.size()));
}

TEST_F(ReplacedSources, OtherKindsTakeTheirPlace) {
    add_packed(3);
    PackedTensor& tensor = packed(FloatFormat::bf16, kElements);
    sh_segment in_file = SH_SEGMENT_INIT;
    in_file.kind = SH_SOURCE_FILE;
    in_file.file = tensor.descriptor();
    in_file.bytes = tensor.contents.size();
    in_file.packed_bytes = tensor.frame.size();
    const Memory plain = contents(77);
    const auto* const moved = static_cast<const uint8_t*>(pinned(plain));
    // Two segments in place of one, of which the first is pinned, with undefined bytes between them.
    sh_segment parts[2] = {segment_of(plain, 0), segment_of(plain, 0)};
    parts[0].pointer = moved;
    parts[0].bytes = 1000;
    parts[1].pointer = plain.data() + 2000;
    parts[1].offset = 2000;
    parts[1].bytes = plain.size() - 2000;
    SUCCEEDS(sh_source_update_begin(runtime_, blocks_.data(), 3));
    SUCCEEDS(sh_source_replace(runtime_, blocks_[0], &in_file, 1));
    SUCCEEDS(sh_source_replace(runtime_, blocks_[1], parts, 2));
    SUCCEEDS(sh_source_replace(runtime_, blocks_[2], parts, 2));  // twice: the last one counts
    const sh_segment again = segment_of(plain);
    SUCCEEDS(sh_source_replace(runtime_, blocks_[2], &again, 1));
    SUCCEEDS(sh_source_update_end(runtime_, blocks_.data(), 3));
    truth_[0] = tensor.contents;
    truth_[2] = plain;
    for (int i = 0; i < 2; i++) {
        expect_bytes(runtime_, blocks_[0], truth_[0]);
        expect_bytes(runtime_, blocks_[2], truth_[2]);
        sh_view view = held_view(runtime_, blocks_[1]);
        const Memory found = read(view);
        EXPECT_TRUE(std::equal(plain.begin(), plain.begin() + 1000, found.begin()));
        EXPECT_TRUE(std::equal(plain.begin() + 2000, plain.end(), found.begin() + 2000));
        let_go(runtime_, blocks_[1]);
        SUCCEEDS(sh_invalidate_blocks(runtime_, blocks_.data(), 3));
    }
}

TEST_F(ReplacedSources, WhatIsWrongIsSaidAndChangesNothing) {
    add_packed(2);
    const Memory other = contents(50);
    const sh_segment segment = segment_of(other);
    SUCCEEDS(sh_source_update_begin(runtime_, blocks_.data(), 1));
    const auto refused = [&](auto&& change, const char* says) {
        sh_segment wrong = segment;
        change(wrong);
        EXPECT_REFUSED(sh_source_replace(runtime_, blocks_[0], &wrong, 1), SH_ERROR_INVALID_ARGUMENT, "layer 0");
        EXPECT_NE(why().find(says), std::string::npos) << why();
    };
    refused([](sh_segment& wrong) { wrong.bytes++; }, "ends beyond");
    refused([](sh_segment& wrong) { wrong.format = 9; }, "unknown format");
    refused([](sh_segment& wrong) { wrong.kind = 77; }, "kind");
    refused([](sh_segment& wrong) { wrong.format = 0, wrong.packed_bytes = 100; }, "packed");
    // Nothing was replaced, and the engine cannot have changed anything.
    EXPECT_REFUSED(sh_source_update_end(runtime_, blocks_.data(), 1), SH_ERROR_INVALID_STATE, "sh_source_replace");
    EXPECT_REFUSED(sh_source_update_end(runtime_, blocks_.data(), 1), SH_ERROR_INVALID_STATE, "no update")
        << "the update has ended: ";
    steps(2);
}

// --- Packed blocks that the engine changes on the device ---

class ChangedPackedBlocks : public ReplacedSources {
protected:
    void add_mutable(int count, uint32_t flags = 0) {
        memory_.reserve(static_cast<size_t>(count));  // blocks refer to it
        for (int i = 0; i < count; i++) {
            memory_.push_back(contents(static_cast<uint8_t>(i)));
            add(segment_of(memory_.back()), SH_BLOCK_PACK | SH_BLOCK_MUTABLE | flags);
            truth_.push_back(memory_.back());
        }
        set_schedule();
    }
    // Changes some bytes of each page.
    void change(size_t i) {
        DeviceBytes bytes(device_.get());
        sh_view view = held_view(runtime_, blocks_[i]);
        SUCCEEDS(sh_mark_dirty(runtime_, blocks_[i]));
        version_++;
        for (size_t k = version_; k < truth_[i].size(); k += 3001) truth_[i][k] ^= static_cast<uint8_t>(version_);
        for (uint64_t at = 0; at < view.bytes; at += kPage) {  // as much as can be reached at once
            const auto begin = truth_[i].begin() + static_cast<std::ptrdiff_t>(at);
            const auto end = begin + static_cast<std::ptrdiff_t>(std::min<uint64_t>(kPage, view.bytes - at));
            SUCCEEDS(bytes.write(SH_STREAM_HOST, static_cast<uint8_t*>(view.address) + at, Memory(begin, end)));
        }
        let_go(runtime_, blocks_[i]);
    }
    void expect_written() {
        SUCCEEDS(sh_write_back(runtime_, nullptr, 0));
        for (size_t i = 0; i < memory_.size(); i++) EXPECT_TRUE(memory_[i] == truth_[i]) << "block " << i;
    }

    std::vector<Memory> memory_;
    uint32_t version_ = 0;
};

// They fit into the budget packed, and not plain. What was there packed must not come back after a change.
TEST_F(ChangedPackedBlocks, LoseWhatStaysPacked) {
    add_mutable(19, SH_BLOCK_PIN);
    steps(2);
    EXPECT_GT(plan().packed_resident_bytes, 0u);
    for (int round = 0; round < 3; round++) {
        for (const size_t i : {0, 3, 18}) change(i);
        steps(2);
    }
    EXPECT_GT(plan().packed_resident_bytes, 0u) << "the others are packed yet";
    expect_written();
}

TEST_F(ChangedPackedBlocks, AreReadPlainAfterAnUpdate) {
    add_mutable(20);
    steps(1);
    change(1);  // written when the update begins
    SUCCEEDS(sh_source_update_begin(runtime_, blocks_.data(), 2));
    EXPECT_TRUE(memory_[1] == truth_[1]);
    for (size_t i = 0; i < 2; i++) {
        truth_[i] = contents(static_cast<uint8_t>(90 + i));
        std::ranges::copy(truth_[i], memory_[i].begin());
    }
    SUCCEEDS(sh_source_update_end(runtime_, blocks_.data(), 2));
    steps(2);
    // Changes that were not written are void.
    change(0);
    truth_[0] = memory_[0];
    SUCCEEDS(sh_invalidate_blocks(runtime_, blocks_.data(), 1));
    steps(2);
    change(0);
    if (!devices_without_pages()) pause_and_resume();
    steps(2);
    expect_written();
}

}  // namespace
}  // namespace stagehand::test
