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

TEST(Grouping, TensorsAreAlignedAndThenNoLongerOneSegment) {
    const Model model = model_of({{"h.0.a", 100}, {"h.0.b", 256}, {"h.0.c", 10}});
    const std::vector<Block> blocks = group_blocks(model);
    ASSERT_EQ(blocks.size(), 1U);
    ASSERT_EQ(blocks[0].segments.size(), 2U);  // after a there is a gap in the block, after b there is none
    EXPECT_EQ(blocks[0].segments[0].bytes, 100U);
    EXPECT_EQ(blocks[0].segments[1].block_offset, 256U);
    EXPECT_EQ(blocks[0].segments[1].bytes, 266U);
    EXPECT_EQ(blocks[0].bytes, 522U);
    expect_promises(model, blocks, 1 << 20);
}

TEST(Grouping, ALayerMayLieInSeveralFiles) {
    const Model model = model_of({{"h.0.a", 512, 0}, {"h.0.z", 512, 1}, {"h.0.b", 512, 0}, {"h.1.a", 512, 1}});
    const std::vector<Block> blocks = group_blocks(model);
    EXPECT_EQ(names_of(blocks), (Strings{"h.0", "h.1"}));
    ASSERT_EQ(blocks[0].segments.size(), 2U);
    EXPECT_EQ(blocks[0].segments[0].file, 0U);
    EXPECT_EQ(blocks[0].segments[0].bytes, 1024U);
    EXPECT_EQ(blocks[0].segments[1].file, 1U);
    expect_promises(model, blocks, 1 << 20);
}

TEST(Grouping, EmptyTensorsAreInNoBlock) {
    const Model model = model_of({{"a.0.w", 0}, {"b.0.w", 5}, {"b.0.x", 0}});
    const std::vector<Block> blocks = group_blocks(model);
    EXPECT_EQ(names_of(blocks), Strings{"b.0"});
    expect_promises(model, blocks, 1 << 20);
    EXPECT_TRUE(group_blocks(model_of({{"a", 0}})).empty());
    EXPECT_TRUE(group_blocks(Model()).empty());
}

TEST(Grouping, SplitsBetweenTensorsInPartsOfAboutEqualSize) {
    std::vector<Part> parts;
    for (int i = 0; i < 10; ++i) {
        parts.push_back({"h.0.t" + std::to_string(i), 4096});
    }
    const Model model = model_of(parts);
    const std::vector<Block> blocks = group_blocks(model, at_most(9 * 4096));
    EXPECT_EQ(names_of(blocks), (Strings{"h.0 [1/2]", "h.0 [2/2]"}));
    EXPECT_EQ(sizes_of(blocks), (std::vector<std::uint64_t>{5 * 4096, 5 * 4096}));
    expect_promises(model, blocks, 9 * 4096);
}

TEST(Grouping, SplitsInsideATensorOnlyWhenItIsTooLarge) {
    const Model model = model_of({{"h.0.small", 256}, {"h.0.large", 30'000}, {"h.0.end", 256}});
    const std::vector<Block> blocks = group_blocks(model, at_most(3 * 4096));
    EXPECT_EQ(names_of(blocks), (Strings{"h.0 [1/4]", "h.0 [2/4]", "h.0 [3/4]", "h.0 [4/4]"}));
    // Three equal parts of whole units; what is left of the last one takes the tensor behind it.
    EXPECT_EQ(sizes_of(blocks), (std::vector<std::uint64_t>{256, 12'288, 12'288, 5'632 + 256}));
    expect_promises(model, blocks, 3 * 4096);
}

TEST(Grouping, LimitIsRoundedDownToWholeUnits) {
    const Model model = model_of({{"x", 3 * 4096}});
    EXPECT_EQ(sizes_of(group_blocks(model, at_most(8191))), (std::vector<std::uint64_t>{4096, 4096, 4096}));
    EXPECT_EQ(sizes_of(group_blocks(model, at_most(8192))), (std::vector<std::uint64_t>{8192, 4096}));
    EXPECT_EQ(group_blocks(model, at_most(3 * 4096)).size(), 1U);
    EXPECT_THROW(group_blocks(model, at_most(4095)), std::invalid_argument);
}

TEST(Grouping, JoinsNeighboursWhenThereAreTooMany) {
    std::vector<Part> parts;
    for (int i = 0; i < 1000; ++i) {
        parts.push_back({"layers." + std::to_string(i) + ".w", 256});
    }
    const Model model = model_of(parts);
    GroupingOptions options;
    options.max_groups = 10;
    const std::vector<Block> blocks = group_blocks(model, options);
    EXPECT_EQ(blocks.size(), 10U);
    EXPECT_EQ(blocks[0].name, "layers.0 to layers.99");
    EXPECT_EQ(blocks[9].name, "layers.900 to layers.999");
    EXPECT_EQ(blocks[0].segments.size(), 1U);
    expect_promises(model, blocks, 100 * 256);

    options.max_block_bytes = 4096;  // counts for more than the wish for few
    expect_promises(model, group_blocks(model, options), 4096);
    options.max_groups = 1000;
    EXPECT_EQ(group_blocks(model, options).size(), 1000U);
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
