// Blocks that are registered as parts: every byte of every part, from each kind of source.
#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "engine.h"

namespace stagehand::test {
namespace {

class PartsOfBlocks : public ::testing::Test {
protected:
    void SetUp() override { SUCCEEDS(sh_runtime_create(device_.get(), nullptr, &runtime_)); }
    void TearDown() override { sh_runtime_destroy(runtime_); }

    std::vector<sh_part> register_parts(const sh_block_desc& desc, const sh_part_options& options,
                                        uint64_t capacity = 64) {
        std::vector<sh_part> parts(capacity, sh_sized<sh_part>());
        uint64_t count = 0;
        EXPECT_SUCCEEDS(sh_register_parts(runtime_, &desc, &options, parts.data(), capacity, &count));
        parts.resize(count);
        return parts;
    }
    std::vector<uint8_t> read(const sh_part& part) {
        auto view = sh_sized<sh_view>();
        std::vector<uint8_t> bytes(part.bytes);
        EXPECT_SUCCEEDS(sh_acquire(runtime_, part.block, SH_STREAM_HOST, 0, &view));
        EXPECT_EQ(view.bytes, part.bytes);
        EXPECT_SUCCEEDS(sh_read_block(runtime_, part.block, SH_STREAM_HOST, 0, bytes.data(), bytes.size()));
        EXPECT_SUCCEEDS(sh_release(runtime_, part.block, SH_STREAM_HOST));
        return bytes;
    }
    sh_status with(const sh_block_desc& desc, const sh_part_options& options, uint64_t capacity = 4) {
        sh_part parts[4] = {sh_sized<sh_part>(), sh_sized<sh_part>(), sh_sized<sh_part>(), sh_sized<sh_part>()};
        uint64_t count = 77;
        const sh_status status = sh_register_parts(runtime_, &desc, &options, parts, capacity, &count);
        EXPECT_EQ(count == 77u, status != SH_OK);
        return status;
    }

    TestDevice device_{{.budget_bytes = 20 * kPage}};
    sh_runtime* runtime_ = nullptr;
    std::vector<std::unique_ptr<Source>> sources_;  // the runtime may load ahead until it is destroyed
};

sh_block_desc block_of(const std::vector<sh_segment>& segments, uint64_t bytes) {
    sh_block_desc desc = SH_BLOCK_DESC_INIT;
    desc.bytes = bytes;
    desc.segments = segments.data();
    desc.segment_count = segments.size();
    return desc;
}

sh_part_options units_of(uint64_t unit_bytes, uint64_t largest_bytes = 0) {
    sh_part_options options = SH_PART_OPTIONS_INIT;
    options.unit_bytes = unit_bytes;
    options.largest_bytes = largest_bytes;
    return options;
}

// Segments of each kind one after the other, with gaps between them, cut anywhere.
TEST_F(PartsOfBlocks, HaveTheBytesOfTheBlock) {
    const uint64_t bytes = 7 * kPage / 3, gap = 100;
    std::vector<sh_segment> segments;
    std::vector<uint8_t> truth;
    for (const Origin origin : kOrigins) {
        std::vector<uint8_t> contents = contents_of(sources_.size(), 0, bytes);
        segments.push_back(
            sources_.emplace_back(std::make_unique<Source>(device_.get(), origin, contents))->segment(truth.size()));
        truth.insert(truth.end(), contents.begin(), contents.end());
        truth.insert(truth.end(), gap, 0);
    }
    const auto is_gap = [&](uint64_t at) { return at % (bytes + gap) >= bytes; };
    sh_block_desc desc = block_of(segments, truth.size());
    desc.name = "head";
    const std::vector<sh_part> parts = register_parts(desc, units_of(1000, kPage));
    ASSERT_GE(parts.size(), 11u);
    for (int step = 0; step < 2; step++) {
        SUCCEEDS(sh_step_begin(runtime_, nullptr));
        uint64_t end = 0, wrong = 0;
        for (const sh_part& part : parts) {
            EXPECT_EQ(part.offset, end);
            EXPECT_LE(part.bytes, kPage);
            const std::vector<uint8_t> found = read(part);
            for (uint64_t i = 0; i < part.bytes; i++)
                wrong += !is_gap(part.offset + i) && found[i] != truth[part.offset + i];
            end += part.bytes;
        }
        EXPECT_EQ(end, truth.size());
        EXPECT_EQ(wrong, 0u);
        SUCCEEDS(sh_step_end(runtime_));
    }
    auto state = sh_sized<sh_block_state>();
    SUCCEEDS(sh_block_get_state(runtime_, parts[1].block, &state));
    EXPECT_EQ(std::string(state.name), "head[2/" + std::to_string(parts.size()) + "]");
    SUCCEEDS(sh_unregister_blocks(runtime_, &parts[0].block, 1));
    EXPECT_EQ(read(parts[1]).size(), parts[1].bytes) << "another part stays";
}

TEST_F(PartsOfBlocks, AreWrittenBackToTheirPlaces) {
    const uint64_t bytes = 5 * kPage;
    const Source& source =
        *sources_.emplace_back(std::make_unique<Source>(device_.get(), Origin::pageable, contents_of(1, 0, bytes)));
    const std::vector<sh_segment> segments = {sources_[0]->segment()};
    sh_block_desc desc = block_of(segments, bytes);
    desc.flags = SH_BLOCK_MUTABLE;
    const std::vector<sh_part> parts = register_parts(desc, units_of(kPage, 2 * kPage));
    ASSERT_EQ(parts.size(), 3u);
    const std::vector<uint8_t> changed = contents_of(1, 1, bytes);
    for (const sh_part& part : parts) {
        sh_view view = held_view(runtime_, part.block);
        const auto begin = changed.begin() + static_cast<ptrdiff_t>(part.offset);
        const auto end = begin + static_cast<ptrdiff_t>(part.bytes);
        SUCCEEDS(device_.bytes().write(SH_STREAM_HOST, view.address, {begin, end}));
        SUCCEEDS(sh_mark_dirty(runtime_, part.block));
        let_go(runtime_, part.block);
    }
    SUCCEEDS(sh_write_back(runtime_, nullptr, 0));
    EXPECT_EQ(source.read(), changed);
}

TEST_F(PartsOfBlocks, AreLargerIfThereIsRoomForFewOnly) {
    const std::vector<sh_segment> none;
    const sh_block_desc desc = block_of(none, 40 * kPage);
    EXPECT_EQ(register_parts(desc, units_of(kPage, kPage)).size(), 40u);
    EXPECT_EQ(register_parts(desc, units_of(kPage, kPage), 7).size(), 7u);
    EXPECT_EQ(register_parts(desc, units_of(kPage, kPage), 1).size(), 1u);
    EXPECT_EQ(register_parts(desc, units_of(1)).size(), 3u) << "16 pages at most, if the budget is small";
    EXPECT_EQ(register_parts(desc, units_of(30 * kPage)).size(), 2u) << "a unit is never cut";
}

TEST_F(PartsOfBlocks, GrowWithTheBudget) {
    SUCCEEDS(sh_device_set_budget(device_.get(), 128 * 20 * kPage));
    const std::vector<sh_segment> none;
    EXPECT_EQ(register_parts(block_of(none, 40 * kPage), units_of(1)).size(), 2u);
}

}  // namespace
}  // namespace stagehand::test
