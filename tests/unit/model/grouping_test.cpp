// Blocks that are made from tensors: which tensors belong together, how they are split, and where each byte lands.
#include "model/grouping.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>
#include <stdexcept>
#include <string>
#include <vector>

#include "model_files.h"

namespace stagehand::cli::model::test {

namespace {

using Strings = std::vector<std::string>;

struct Part {
    std::string name;
    std::uint64_t bytes;
    std::uint32_t file = 0;
};

constexpr std::uint64_t data_offset = 1000;

// The parts one after another in their files.
Model model_of(const std::vector<Part>& parts) {
    Model model;
    std::map<std::uint32_t, std::uint64_t> end;
    for (const Part& part : parts) {
        while (model.files.size() <= part.file) {
            model.files.push_back({"file" + std::to_string(model.files.size()), 0, {}, data_offset});
        }
        Tensor tensor;
        tensor.name = model.arena.copy(std::string_view(part.name));
        tensor.bytes = part.bytes;
        tensor.file = part.file;
        tensor.offset = data_offset + end[part.file];
        end[part.file] += part.bytes;
        model.files[part.file].bytes = tensor.offset + tensor.bytes;
        model.total_bytes += part.bytes;
        model.tensors.push_back(tensor);
    }
    return model;
}

GroupingOptions at_most(std::uint64_t bytes) {
    GroupingOptions options;
    options.max_block_bytes = bytes;
    return options;
}

Strings names_of(const std::vector<Block>& blocks) {
    Strings names;
    for (const Block& block : blocks) {
        names.push_back(block.name);
    }
    return names;
}

std::vector<std::uint64_t> sizes_of(const std::vector<Block>& blocks) {
    std::vector<std::uint64_t> sizes;
    for (const Block& block : blocks) {
        sizes.push_back(block.bytes);
    }
    return sizes;
}

// Checks what group_blocks promises about all blocks.
void expect_promises(const Model& model, const std::vector<Block>& blocks, std::uint64_t max_bytes) {
    struct Run {
        std::uint32_t file;
        std::uint64_t begin;
        std::uint64_t end;
    };
    std::vector<Run> runs;
    std::map<std::pair<std::uint32_t, std::uint64_t>, std::uint64_t> tensor_at;  // bytes, by file and offset
    for (const Tensor& tensor : model.tensors) {
        if (tensor.bytes > 0) {
            tensor_at[{tensor.file, tensor.offset}] = tensor.bytes;
        }
    }
    std::map<std::string, int> names;
    for (const Block& block : blocks) {
        EXPECT_EQ(++names[block.name], 1) << block.name;
        EXPECT_LE(block.bytes, max_bytes) << block.name;
        ASSERT_FALSE(block.segments.empty()) << block.name;
        std::uint64_t end = 0;
        for (const Segment& segment : block.segments) {
            EXPECT_GT(segment.bytes, 0U);
            EXPECT_EQ(segment.block_offset, (end + 255) / 256 * 256) << block.name;
            end = segment.block_offset + segment.bytes;
            runs.push_back({segment.file, segment.offset, segment.offset + segment.bytes});
            // Tensors inside this segment begin at aligned places of the block.
            const auto from = tensor_at.lower_bound({segment.file, segment.offset});
            const auto to = tensor_at.lower_bound({segment.file, segment.offset + segment.bytes});
            for (auto at = from; at != to; ++at) {
                EXPECT_EQ((segment.block_offset + at->first.second - segment.offset) % tensor_alignment, 0U);
            }
            // A segment that begins inside a tensor begins at a whole split unit of it.
            if (from == to || from->first.second != segment.offset) {
                ASSERT_NE(from, tensor_at.begin());
                EXPECT_EQ((segment.offset - std::prev(from)->first.second) % split_bytes, 0U);
            }
        }
        EXPECT_EQ(block.bytes, end) << block.name;
    }
    // Every byte of every tensor, once: the runs, sorted, cover exactly the tensors.
    std::sort(runs.begin(), runs.end(),
              [](const Run& a, const Run& b) { return a.file != b.file ? a.file < b.file : a.begin < b.begin; });
    std::uint64_t covered = 0;
    for (std::size_t i = 0; i < runs.size(); ++i) {
        covered += runs[i].end - runs[i].begin;
        if (i > 0 && runs[i].file == runs[i - 1].file) {
            EXPECT_GE(runs[i].begin, runs[i - 1].end);
        }
        EXPECT_GE(runs[i].begin, data_offset);
        EXPECT_LE(runs[i].end, model.files[runs[i].file].bytes);
    }
    EXPECT_EQ(covered, model.total_bytes);
}

TEST(Grouping, ALayerIsABlockAndAdjacentTensorsAreOneSegment) {
    const Model model = model_of({{"lm_head.weight", 1024},
                                  {"model.embed_tokens.weight", 2048},
                                  {"model.layers.1.a", 512},
                                  {"model.layers.1.b", 256},
                                  {"model.layers.0.a", 512},
                                  {"model.layers.0.b", 256},
                                  {"model.norm.weight", 256}});
    const std::vector<Block> blocks = group_blocks(model);
    EXPECT_EQ(names_of(blocks),
              (Strings{"model.embed_tokens", "model.layers.0", "model.layers.1", "model.norm", "lm_head"}));
    EXPECT_EQ(sizes_of(blocks), (std::vector<std::uint64_t>{2048, 768, 768, 256, 1024}));
    for (const Block& block : blocks) {
        EXPECT_EQ(block.segments.size(), 1U) << block.name;
    }
    EXPECT_EQ(blocks[1].segments[0].offset, data_offset + 1024 + 2048 + 768);
    expect_promises(model, blocks, 1 << 20);
}

TEST(Grouping, MarksUnorderedBlocksAndJoinsNone) {
    std::vector<Part> parts;
    for (int i = 0; i < 100; ++i) {
        const std::string layer = "layers." + std::to_string(i);
        parts.push_back({layer + ".attn.w", 256});
        parts.push_back({layer + ".experts.0.w", 256});
        parts.push_back({layer + ".experts.1.w", 8192});
    }
    const Model model = model_of(parts);
    GroupingOptions options;
    options.max_groups = 10;
    options.max_block_bytes = 4096;
    options.unordered = {"*.experts.*"};
    std::size_t unordered = 0;
    for (const Block& block : group_blocks(model, options)) {
        EXPECT_EQ(block.unordered, block.name.find("experts") != std::string::npos) << block.name;
        EXPECT_EQ(block.name.find(" to "), std::string::npos) << block.name;
        unordered += block.unordered ? 1 : 0;
    }
    EXPECT_EQ(unordered, 300U);  // each large expert is split in two
}

TEST(Grouping, RefusesMoreBlocksThanMakeSense) {
    const Model model = model_of({{"x", std::uint64_t{1} << 60}});
    const ModelError error = error_of([&] { group_blocks(model, at_most(1 << 20)); });
    EXPECT_EQ(error.file(), "file0");
    EXPECT_NE(error.message().find("allow larger ones"), std::string::npos) << error.what();
}

TEST(Grouping, RandomModelsKeepThePromises) {
    std::mt19937 random(20240607);
    const auto pick = [&](std::uint32_t below) { return static_cast<std::uint32_t>(random() % below); };
    for (int round = 0; round < 200; ++round) {
        std::vector<Part> parts;
        const std::uint32_t count = 1 + pick(60);
        for (std::uint32_t i = 0; i < count; ++i) {
            const std::string layer = pick(3) == 0 ? "rest" + std::to_string(pick(4)) : "h." + std::to_string(pick(6));
            const std::uint64_t bytes = pick(5) == 0 ? pick(200'000) : pick(2) == 0 ? 256 * pick(40) : pick(3000);
            parts.push_back({layer + ".t" + std::to_string(i), bytes, pick(3)});
        }
        const Model model = model_of(parts);
        GroupingOptions options;
        options.max_block_bytes = 4096 * (1 + pick(40));
        options.max_groups = 1 + pick(8);
        expect_promises(model, group_blocks(model, options), options.max_block_bytes);
    }
}

TEST(Grouping, MaxBlockIsAQuarterOfTheBudget) {
    constexpr std::uint64_t kib = 1024;
    EXPECT_EQ(max_block_for_budget(100 * kib * kib), 25 * kib * kib);
    EXPECT_EQ(max_block_for_budget(400 * kib + 5), 100 * kib);
    EXPECT_EQ(max_block_for_budget(200 * kib), 64 * kib);
    EXPECT_EQ(max_block_for_budget(64 * kib), 64 * kib);
    EXPECT_EQ(max_block_for_budget(63 * kib), 60 * kib);
    EXPECT_EQ(max_block_for_budget(4096), 4096U);
    EXPECT_EQ(max_block_for_budget(1), 4096U);
    EXPECT_EQ(max_block_for_budget(0), 4096U);
    EXPECT_EQ(max_block_for_budget(~std::uint64_t{0}) % split_bytes, 0U);
}

}  // namespace

}  // namespace stagehand::cli::model::test
