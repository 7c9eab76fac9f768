#include "transfer/staging/gather.h"

#include <random>
#include <vector>

#include <gtest/gtest.h>

namespace stagehand::transfer {
namespace {

std::vector<Piece> cut_all(const std::vector<StagedExtent>& extents, uint64_t piece_bytes) {
    const std::span<const StagedExtent> all(extents);
    std::vector<Piece> pieces;
    Cursor next;
    skip_empty(all, &next);
    while (next.extent < extents.size()) {
        pieces.push_back(cut_piece(all, next, piece_bytes));
        next = pieces.back().end;
    }
    return pieces;
}

TEST(CutPiece, CutsALongExtentIntoWholePiecesAndARest) {
    Source source;
    const std::vector<StagedExtent> extents = {{&source, 0, 1000, 2500, 0, 0}};
    const auto pieces = cut_all(extents, 1000);
    ASSERT_EQ(pieces.size(), 3u);
    EXPECT_EQ(pieces[0].bytes, 1000u);
    EXPECT_EQ(pieces[1].begin.offset, 1000u);
    EXPECT_EQ(pieces[2].bytes, 500u);
}

TEST(CutPiece, StepsOverEmptyExtents) {
    Source source;
    std::vector<StagedExtent> extents(3 * kMostExtents, StagedExtent{&source, 0, 0, 0, 0, 0});
    EXPECT_TRUE(cut_all(extents, 1000).empty());
    extents.back().bytes = 5;
    extents.front().bytes = 5;
    uint64_t bytes = 0;
    for (const Piece& piece : cut_all(extents, 1000)) bytes += piece.bytes;
    EXPECT_EQ(bytes, 10u);
}

TEST(CutPiece, CoversEveryByteOnceForRandomExtents) {
    std::mt19937 random(3);
    for (int round = 0; round < 300; round++) {
        Source source;
        std::vector<StagedExtent> extents;
        uint64_t total = 0;
        const uint64_t piece_bytes = 1 + random() % 5000;
        for (size_t count = random() % 40; count > 0; count--) {
            const uint64_t bytes = random() % 4 == 0 ? 0 : random() % (1u << random() % 16);
            extents.push_back({&source, 0, total, bytes, 0, 0});
            total += bytes;
        }
        uint64_t at = 0;
        for (const Piece& piece : cut_all(extents, piece_bytes)) {
            ASSERT_LE(piece.bytes, piece_bytes);
            ASSERT_GT(piece.bytes, 0u);
            uint64_t bytes = 0;
            for_each_part(std::span<const StagedExtent>(extents), piece,
                          [&](const StagedExtent& extent, uint64_t offset, uint64_t part) {
                              ASSERT_EQ(extent.device_address + offset, at);
                              ASSERT_LE(offset + part, extent.bytes);
                              at += part;
                              bytes += part;
                          });
            ASSERT_EQ(bytes, piece.bytes);
        }
        ASSERT_EQ(at, total);
    }
}

struct LaidOut {
    std::vector<Command> commands;
    std::vector<ReadRequest> requests;
};

uint64_t place_of(const std::vector<char>& slot, uint64_t offset) {
    return reinterpret_cast<uint64_t>(slot.data()) + offset;
}

LaidOut lay_out_all(const StagedLoad& load, char* slot, uint64_t slot_bytes) {
    LaidOut out;
    const Piece piece = cut_piece(std::span<const StagedExtent>(load.extents), {}, slot_bytes);
    EXPECT_TRUE(lay_out(load, piece, slot, slot_bytes, &out.commands, &out.requests).ok());
    return out;
}

TEST(LayOut, MakesOneCommandOfNeighboursAndOneMoreForEachGap) {
    Source source;
    StagedLoad load;
    load.extents = {{&source, 0, 1000, 10, 0, 0}, {&source, 50, 1010, 20, 0, 0}, {&source, 70, 1031, 5, 0, 0}};
    std::vector<char> slot(4096);
    const LaidOut out = lay_out_all(load, slot.data(), slot.size());
    ASSERT_EQ(out.commands.size(), 2u);  // no extent covers the byte at 1030
    EXPECT_EQ(out.commands[0].bytes, 30u);
    EXPECT_EQ(out.commands[1].device, 1031u);
    EXPECT_EQ(out.requests.size(), 3u);
}

TEST(LayOut, PartsCommandsWhereTheWaitsChange) {
    Source source;
    StagedLoad load;
    load.waits = {7, 8};
    load.extents = {{&source, 0, 0, 10, 0, 1}, {&source, 10, 10, 10, 1, 1}, {&source, 20, 20, 10, 1, 1}};
    std::vector<char> slot(4096);
    const LaidOut out = lay_out_all(load, slot.data(), slot.size());
    ASSERT_EQ(out.commands.size(), 2u);
    EXPECT_EQ(out.commands[1].bytes, 20u);
    EXPECT_EQ(out.commands[1].other, place_of(slot, 10));
    EXPECT_TRUE(out.commands[1].joins);  // once both waits were made
}

TEST(LayOut, PutsLargeReadsWhereADirectReadIsAligned) {
    Source small, large;
    large.direct_file = 5;
    large.file_offset = 777;
    StagedLoad load;
    load.extents = {{&small, 0, 0, 100, 0, 0}, {&large, 1, 5000, 100000, 0, 0}};
    std::vector<char> slot(128 << 10);
    Piece piece = cut_piece(std::span<const StagedExtent>(load.extents), {}, 110000);
    std::vector<Command> commands;
    std::vector<ReadRequest> requests;
    ASSERT_TRUE(lay_out(load, piece, slot.data(), slot.size(), &commands, &requests).ok());
    EXPECT_EQ((commands.at(1).other - place_of(slot, 0)) % 4096, 778u);
    // The layout stays dense if there is no spare room.
    ASSERT_TRUE(lay_out(load, piece, slot.data(), piece.bytes, &commands, &requests).ok());
    EXPECT_EQ(commands.at(1).other, place_of(slot, 100));
}

TEST(LayOut, NeverLeavesTheSlotNorOverlapsForRandomLoads) {
    std::mt19937 random(5);
    for (int round = 0; round < 500; round++) {
        Source sources[2];
        sources[1].direct_file = 3;
        sources[1].file_offset = random() % 10000;
        StagedLoad load;
        uint64_t address = 1000;
        for (size_t count = 1 + random() % 30; count > 0; count--) {
            const uint64_t bytes = random() % (1u << random() % 18);
            load.extents.push_back({&sources[random() % 2], random() % 1000, address, bytes, 0, 0});
            address += bytes + (random() % 2 ? random() % 300 : 0);
        }
        const uint64_t piece_bytes = 1 + random() % 300000, slot_bytes = piece_bytes + random() % 9000;
        std::vector<char> slot(slot_bytes);
        const Piece piece = cut_piece(std::span<const StagedExtent>(load.extents), {}, piece_bytes);
        std::vector<Command> commands;
        std::vector<ReadRequest> requests;
        ASSERT_TRUE(lay_out(load, piece, slot.data(), slot_bytes, &commands, &requests).ok());
        uint64_t position = place_of(slot, 0), bytes = 0;
        for (const Command& command : commands) {
            ASSERT_GE(command.other, position);
            position = command.other + command.bytes;
            bytes += command.bytes;
        }
        ASSERT_LE(position, place_of(slot, slot_bytes));
        ASSERT_EQ(bytes, piece.bytes);
        bytes = 0;
        for (const ReadRequest& request : requests) bytes += request.bytes;
        ASSERT_EQ(bytes, piece.bytes);
    }
}

TEST(LayOut, RefusesALoadThatContradictsItself) {
    Source source;
    std::vector<Command> commands;
    std::vector<ReadRequest> requests;
    char slot[64];
    StagedLoad load;
    load.extents = {{nullptr, 0, 0, 10, 0, 0}};
    EXPECT_EQ(lay_out(load, {{0, 0}, {1, 0}, 10}, slot, sizeof slot, &commands, &requests).code(), SH_ERROR_INTERNAL);
    load.extents = {{&source, 0, 0, 10, 0xffffffff, 2}};
    EXPECT_EQ(lay_out(load, {{0, 0}, {1, 0}, 10}, slot, sizeof slot, &commands, &requests).code(), SH_ERROR_INTERNAL);
}

}  // namespace
}  // namespace stagehand::transfer
