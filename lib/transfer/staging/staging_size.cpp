#include "transfer/staging/staging_size.h"

#include <algorithm>
#include <cstring>

#include "base/log.h"
#include "base/number.h"

namespace stagehand::transfer {
namespace {

constexpr uint64_t kPieceUnit = 4096;
constexpr uint64_t kDefaultPiece = 1 << 20;
constexpr uint64_t kLargestStagedPiece = 32 << 20;  // smaller than the smallest registered piece of memory
constexpr uint32_t kMostSlots = 4096;
// Ten threads keep up with the fastest links if the bytes are in the page cache, and eight if they are in plain memory.
// The engine itself needs cores too.
constexpr uint32_t kDefaultThreads = 12;

uint32_t threads_from(const char* text) {
    if (!text || !*text) return 0;
    const uint32_t threads = read_number<uint32_t>(text).value_or(0);
    if (threads >= 1 && threads <= kMostThreads) return threads;
    log_line(SH_LOG_WARNING, "STAGEHAND_STAGING_THREADS is ignored: \"%.40s\" is not a number from 1 to %u", text,
             kMostThreads);
    return 0;
}

}  // namespace

uint64_t fair_piece(uint64_t left, uint32_t workers, uint64_t least, uint64_t most) {
    const uint64_t part = (left + workers - 1) / workers;
    return std::min(most, std::max(least, (part + kPieceUnit - 1) / kPieceUnit * kPieceUnit));
}

StagingSize choose_staging_size(const StagingOptions& options, const sh_backend_device_info& info, uint32_t cores,
                                const char* threads_variable) {
    StagingSize size;
    size.threads = std::min(options.threads, kMostThreads);
    if (!size.threads) size.threads = threads_from(threads_variable);
    // At least two, so that one worker can read while the other issues.
    if (!size.threads) size.threads = std::clamp(cores - cores / 4, 2u, kDefaultThreads);

    uint64_t piece = options.piece_bytes ? options.piece_bytes : info.staging_piece_bytes;
    if (!piece) piece = kDefaultPiece;
    piece = std::min(piece, kLargestStagedPiece);
    if (options.bytes) piece = std::min(piece, options.bytes / 32 * 15);  // room for two slots
    piece = std::max(kPieceUnit, piece / kPieceUnit * kPieceUnit);
    // A sixteenth is left for aligning the targets of copies with the file or the device.
    const uint64_t room = std::clamp(piece / 16 / kPieceUnit * kPieceUnit, kPieceUnit, uint64_t(64) << 10);
    size.piece_bytes = piece;
    size.slot_bytes = piece + room;
    // Each worker fills one slot while another is in flight. Two more slots keep the link busy while workers change
    // over.
    size.slots = options.bytes
                     ? static_cast<uint32_t>(std::clamp<uint64_t>(options.bytes / size.slot_bytes, 2, kMostSlots))
                     : 2 * size.threads + 2;
    size.threads = std::min(size.threads, size.slots);
    return size;
}

}  // namespace stagehand::transfer
