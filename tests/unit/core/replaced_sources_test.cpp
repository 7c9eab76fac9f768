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

// Views that are held keep what they have.
TEST_F(ReplacedSources, HeldViewsKeepTheirContents) {
    add_packed(2);
    const Memory before = truth_[0];
    sh_view view = held_view(runtime_, blocks_[0]);
    replace_with(0, contents(9));
    EXPECT_TRUE(read(view) == before);
    let_go(runtime_, blocks_[0]);
    steps(1);
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
    sh_segment segment = segment_of(other);
    EXPECT_REFUSED(sh_source_replace(runtime_, blocks_[0], &segment, 1), SH_ERROR_INVALID_STATE, "layer 0");
    EXPECT_EQ(sh_source_replace(runtime_, blocks_[0] + 1000, &segment, 1), SH_ERROR_INVALID_HANDLE);
    SUCCEEDS(sh_source_update_begin(runtime_, blocks_.data(), 1));
    EXPECT_EQ(sh_source_replace(runtime_, blocks_[1], &segment, 1), SH_ERROR_INVALID_STATE) << "not in this update";
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
    EXPECT_EQ(sh_source_replace(runtime_, blocks_[0], nullptr, 1), SH_ERROR_INVALID_ARGUMENT);
    // Nothing was replaced, and the engine cannot have changed anything.
    EXPECT_REFUSED(sh_source_update_end(runtime_, blocks_.data(), 1), SH_ERROR_INVALID_STATE, "sh_source_replace");
    EXPECT_REFUSED(sh_source_update_end(runtime_, blocks_.data(), 1), SH_ERROR_INVALID_STATE, "no update")
        << "the update has ended: ";
    steps(2);
}

TEST_F(ReplacedSources, AreThoseOfAPartOfABlock) {
    Memory memory = contents(1);
    const sh_segment segment = segment_of(memory);
    sh_block_desc desc = SH_BLOCK_DESC_INIT;
    desc.segments = &segment;
    desc.segment_count = 1;
    desc.bytes = segment.bytes;
    desc.flags = SH_BLOCK_PACK;
    sh_part_options options = SH_PART_OPTIONS_INIT;
    options.unit_bytes = 2;
    options.largest_bytes = kDeviceMiB / 2;
    sh_part parts[8];
    for (sh_part& part : parts) part = sh_sized<sh_part>();
    uint64_t count = 0;
    SUCCEEDS(sh_register_parts(runtime_, &desc, &options, parts, 8, &count));
    ASSERT_GE(count, 2u);
    const Memory other = contents(2);
    sh_segment of_part = segment_of(other);
    of_part.pointer = other.data() + parts[1].offset;
    of_part.bytes = parts[1].bytes;
    SUCCEEDS(sh_source_update_begin(runtime_, &parts[1].block, 1));
    SUCCEEDS(sh_source_replace(runtime_, parts[1].block, &of_part, 1));
    SUCCEEDS(sh_source_update_end(runtime_, &parts[1].block, 1));
    for (uint64_t i = 0; i < count; i++) {
        const Memory& truth = i == 1 ? other : memory;
        const auto begin = truth.begin() + static_cast<std::ptrdiff_t>(parts[i].offset);
        expect_bytes(runtime_, parts[i].block, Memory(begin, begin + static_cast<std::ptrdiff_t>(parts[i].bytes)));
    }
}

// Only the return of the call tells that nothing reads the sources any more.
TEST_F(ReplacedSources, WaitUntilTheUpdateHasBegun) {
    if (!on_host_backend()) GTEST_SKIP() << "needs work that waits for this thread";
    add_packed(1);
    steps(1);
    const sh_stream uses = device_.stream(), waits = device_.stream();
    std::atomic<bool> goes_on = false;
    const auto until_told = [](void* data) {
        while (!*static_cast<std::atomic<bool>*>(data)) std::this_thread::yield();
    };
    sh_view view = held_view(runtime_, blocks_[0], uses);
    SUCCEEDS(sh_stream_launch(device_.get(), uses, until_told, &goes_on, 0));
    let_go(runtime_, blocks_[0], uses);
    SUCCEEDS(sh_invalidate_blocks(runtime_, blocks_.data(), 1));
    view = held_view(runtime_, blocks_[0], waits);  // its load waits for that use
    std::thread thread([&] { EXPECT_SUCCEEDS(sh_source_update_begin(runtime_, blocks_.data(), 1)); });
    auto other = sh_sized<sh_view>();
    while (sh_acquire(runtime_, blocks_[0], waits, SH_ACQUIRE_NO_WAIT, &other) == SH_OK) {
        let_go(runtime_, blocks_[0], waits);
    }
    const Memory memory = contents(70);
    const sh_segment segment = segment_of(memory);
    EXPECT_EQ(sh_source_replace(runtime_, blocks_[0], &segment, 1), SH_ERROR_INVALID_STATE);
    EXPECT_EQ(sh_source_update_end(runtime_, blocks_.data(), 1), SH_ERROR_INVALID_STATE);
    goes_on = true;
    thread.join();
    let_go(runtime_, blocks_[0], waits);
    SUCCEEDS(sh_source_replace(runtime_, blocks_[0], &segment, 1));
    SUCCEEDS(sh_source_update_end(runtime_, blocks_.data(), 1));
    truth_[0] = memory;
    steps(1);
}

TEST_F(ReplacedSources, StayThroughAPause) {
    if (devices_without_pages()) GTEST_SKIP() << "memory without pages cannot be paused";
    add_packed(19);
    steps(2);
    SUCCEEDS(sh_source_update_begin(runtime_, &blocks_[4], 1));
    pause_and_resume();
    const Memory other = contents(60);
    const sh_segment segment = segment_of(other);
    SUCCEEDS(sh_source_replace(runtime_, blocks_[4], &segment, 1));
    pause_and_resume();
    SUCCEEDS(sh_source_update_end(runtime_, &blocks_[4], 1));
    truth_[4] = other;
    steps(2);
    pause_and_resume();
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

TEST_F(ChangedPackedBlocks, ArePackedUntilTheyAreWritten) {
    add_mutable(30);
    steps(2);
    const uint64_t packed_step = brought_by(2);
    const uint64_t pinned_before = on_host_backend() ? host::all_memory_statistics().at(0).pinned_bytes : 0;
    change(5);
    for (int i = 0; i < 3; i++) step(runtime_);
    EXPECT_TRUE(memory_[5] == truth_[5]) << "its pages were used again, so it was written";
    for (size_t i = 0; i < blocks_.size(); i++) change(i);
    steps(2);
    EXPECT_GT(brought_by(2), packed_step * 5 / 4) << "the blocks are plain now";
    EXPECT_EQ(plan().packed_resident_bytes, 0u);
    if (on_host_backend()) {
        EXPECT_GT(pinned_before, kDevice.staging_bytes + (24 << 20));
        EXPECT_LT(host::all_memory_statistics().at(0).pinned_bytes, kDevice.staging_bytes + (1 << 20)) << "copies";
    }
    for (int round = 0; round < 3; round++) {
        SUCCEEDS(sh_step_begin(runtime_, nullptr));
        for (size_t i = round; i < blocks_.size(); i += 3) change(i);
        SUCCEEDS(sh_step_end(runtime_));
        steps(1);
    }
    expect_written();
    // And packed again.
    SUCCEEDS(sh_source_update_begin(runtime_, blocks_.data(), blocks_.size()));
    for (size_t i = 0; i < blocks_.size(); i++) {
        const sh_segment segment = segment_of(memory_[i]);
        SUCCEEDS(sh_source_replace(runtime_, blocks_[i], &segment, 1));
    }
    SUCCEEDS(sh_source_update_end(runtime_, blocks_.data(), blocks_.size()));
    steps(40);  // until plans count on no changes any more
    EXPECT_LT(brought_by(2), packed_step * 5 / 4);
    change(2);
    steps(2);
    expect_written();
}

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

// Nothing is loaded again, so only a plan can free the copies.
TEST_F(ChangedPackedBlocks, LeaveNoCopiesWhereTheyStay) {
    if (!on_host_backend()) GTEST_SKIP() << "only the host backend counts pinned memory";
    add_mutable(4);
    steps(1);
    EXPECT_GT(host::all_memory_statistics().at(0).pinned_bytes, kDevice.staging_bytes + (5 << 20));
    for (size_t i = 0; i < 4; i++) change(i);
    SUCCEEDS(sh_write_back(runtime_, nullptr, 0));
    steps(1);
    EXPECT_LE(host::all_memory_statistics().at(0).pinned_bytes, kDevice.staging_bytes);
    expect_written();
}

TEST_F(ChangedPackedBlocks, AreReadPlainAfterAnInvalidation) {
    add_mutable(20);
    steps(1);
    for (const size_t i : {0, 11}) {
        truth_[i] = contents(static_cast<uint8_t>(50 + i));
        std::ranges::copy(truth_[i], memory_[i].begin());
    }
    SUCCEEDS(sh_invalidate_blocks(runtime_, &blocks_[0], 1));
    SUCCEEDS(sh_invalidate_blocks(runtime_, &blocks_[11], 1));
    steps(2);
    for (const size_t i : {0, 11}) change(i);
    steps(2);
    expect_written();
}

TEST_F(ChangedPackedBlocks, TakeWhatDoesNotPackAsItIs) {
    memory_.emplace_back(2 << 20);
    for (size_t k = 0; k < memory_[0].size(); k++) memory_[0][k] = static_cast<uint8_t>((k * 2654435761u) >> 13);
    add(segment_of(memory_[0]), SH_BLOCK_PACK | SH_BLOCK_MUTABLE);
    truth_.push_back(memory_[0]);
    steps(1);
    memory_[0][9] ^= 1;  // no load is under way
    truth_[0][9] ^= 1;
    SUCCEEDS(sh_invalidate_blocks(runtime_, blocks_.data(), 1));
    steps(1);
    change(0);
    SUCCEEDS(sh_write_back(runtime_, blocks_.data(), 1));
    EXPECT_TRUE(memory_[0] == truth_[0]);
    SUCCEEDS(sh_source_update_begin(runtime_, blocks_.data(), 1));
    memory_[0][5] ^= 1;
    truth_[0][5] ^= 1;
    SUCCEEDS(sh_source_update_end(runtime_, blocks_.data(), 1));
    steps(1);
}

}  // namespace
}  // namespace stagehand::test
