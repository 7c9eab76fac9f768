#include "core/spill/checksum.h"

#include <algorithm>
#include <span>

#define XXH_INLINE_ALL  // the library needs no other library for it at run time
#include <xxhash.h>

#include "core/device/device_reader.h"

namespace stagehand::core {

uint64_t checksum(const void* data, uint64_t bytes) { return XXH3_64bits(data, bytes); }

Status checksum_on_device(BackendDevice& device, sh_stream stream, uint64_t address, uint64_t bytes, uint64_t* out) {
    constexpr uint64_t kPieceBytes = 4 << 20;
    DeviceReader reader(device, stream);
    XXH3_state_t state;
    XXH3_64bits_reset(&state);
    for (uint64_t at = 0; at < bytes; at += kPieceBytes) {
        std::span<const char> piece;
        SH_TRY(reader.read(address + at, std::min(kPieceBytes, bytes - at), &piece));
        XXH3_64bits_update(&state, piece.data(), piece.size());
    }
    *out = XXH3_64bits_digest(&state);
    return Status();
}

}  // namespace stagehand::core
