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

}  // namespace
}  // namespace stagehand::transfer
