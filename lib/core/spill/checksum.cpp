#include "core/spill/checksum.h"

#include <algorithm>
#include <span>

#include "codec/checksum.h"
#include "core/device/device_reader.h"

namespace stagehand::core {
namespace {

// Device memory is read in pieces, each of which has a checksum.
uint64_t add_piece(uint64_t sum, const char* piece, uint64_t bytes) {
    const uint64_t both[] = {sum, codec::checksum(piece, bytes)};
    return codec::checksum(both, sizeof both);
}

}  // namespace

uint64_t checksum(const void* data, uint64_t bytes) {
    uint64_t sum = 0;
    for (uint64_t at = 0; at < bytes; at += DeviceReader::kMostBytes)
        sum = add_piece(sum, static_cast<const char*>(data) + at, std::min(DeviceReader::kMostBytes, bytes - at));
    return sum;
}

Status checksum_on_device(CopyLane& lane, uint64_t address, uint64_t bytes, uint64_t* out) {
    DeviceReader reader(lane);
    uint64_t sum = 0;
    for (uint64_t at = 0; at < bytes; at += DeviceReader::kMostBytes) {
        std::span<const char> piece;
        SH_TRY(reader.read(address + at, std::min(DeviceReader::kMostBytes, bytes - at), &piece));
        sum = add_piece(sum, piece.data(), piece.size());
    }
    *out = sum;
    return Status();
}

}  // namespace stagehand::core
