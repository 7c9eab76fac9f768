// Cuts loads into pieces that fit a slot, and lays out the bytes of a piece in the slot. All functions are pure.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/status.h"
#include "transfer/route/command.h"
#include "transfer/source/reader.h"
#include "transfer/staging/staging_engine.h"

namespace stagehand::transfer {

// A position in a list of extents.
struct Cursor {
    size_t extent = 0;
    uint64_t offset = 0;  // in the extent
};

// The content of one slot: neighbouring extents. The first and the last extent may be partial.
struct Piece {
    Cursor begin;
    Cursor end;
    uint64_t bytes = 0;
};

// The limit of extents in one piece. The engine holds its mutex while it adds extents up.
constexpr size_t kMostExtents = 4096;

// Steps over empty extents. The cursor is at the end of the list afterwards if the list is exhausted.
template <typename Extent>
void skip_empty(std::span<const Extent> extents, Cursor* cursor) {
    while (cursor->extent < extents.size() && cursor->offset >= extents[cursor->extent].bytes)
        *cursor = {cursor->extent + 1, 0};
}

// Returns the piece that begins at `from`. The piece is empty at the end of the list.
template <typename Extent>
Piece cut_piece(std::span<const Extent> extents, Cursor from, uint64_t piece_bytes) {
    Piece piece;
    piece.begin = piece.end = from;
    const size_t stop = extents.size() - from.extent > kMostExtents ? from.extent + kMostExtents : extents.size();
    while (piece.end.extent < stop && piece.bytes < piece_bytes) {
        const uint64_t rest = extents[piece.end.extent].bytes - piece.end.offset;
        const uint64_t room = piece_bytes - piece.bytes;
        if (rest > room) {
            piece.end.offset += room;
            piece.bytes += room;
            break;
        }
        piece.bytes += rest;
        piece.end = {piece.end.extent + 1, 0};
    }
    skip_empty(extents, &piece.end);
    return piece;
}

// Calls `visit(extent, offset, bytes)` for each part of an extent that belongs to the piece.
template <typename Extent, typename Visit>
void for_each_part(std::span<const Extent> extents, const Piece& piece, Visit visit) {
    uint64_t left = piece.bytes;
    for (Cursor at = piece.begin; left > 0; at = {at.extent + 1, 0}) {
        const Extent& extent = extents[at.extent];
        const uint64_t bytes = extent.bytes - at.offset < left ? extent.bytes - at.offset : left;
        if (bytes > 0) visit(extent, at.offset, bytes);
        left -= bytes;
    }
}

// Lays a piece out in a slot. There is one command for each contiguous device range behind the same waits. The bytes
// are packed densely, except for the alignment of large reads. The device bytes between the ranges belong to other
// owners and are never written. Returns SH_ERROR_INTERNAL if the load is inconsistent.
Status lay_out(const StagedLoad& load, const Piece& piece, char* slot, uint64_t slot_bytes,
               std::vector<Command>* out_commands, std::vector<ReadRequest>* out_requests);

// The number of bytes to leave free at the beginning of a slot, so that a direct read of a file's bytes needs no extra
// buffer.
uint64_t direct_padding(const Source& source, uint64_t source_offset);

}  // namespace stagehand::transfer
