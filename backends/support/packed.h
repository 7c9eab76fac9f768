// Checks of packed elements, before a backend unpacks them.
#pragma once

#include <cstdint>
#include <iterator>

#include <stagehand/backend.h>

#include "support/last_error.h"

namespace stagehand::support {

static_assert(std::size(sh_backend_packed{}.places) == SH_BACKEND_UNPACK_CHUNKS + 1);

// Bytes of an element. 0: there is no such format.
inline uint32_t element_bytes(uint32_t format) {
    switch (format) {
        case SH_BACKEND_FORMAT_BF16:
        case SH_BACKEND_FORMAT_F16:
            return 2;
        case SH_BACKEND_FORMAT_F32:
            return 4;
        case SH_BACKEND_FORMAT_F8_E4M3:
        case SH_BACKEND_FORMAT_F8_E5M2:
            return 1;
        default:
            return 0;
    }
}

inline uint64_t packed_bytes(const sh_backend_packed& packed) {
    return uint64_t(packed.places[packed.chunks] - packed.places[0]) * 16;
}
inline uint64_t unpacked_bytes(const sh_backend_packed& packed) {
    return packed.elements * element_bytes(packed.format);
}

// Only what the description says of itself. The chunks are looked at when they are unpacked.
inline sh_status check_packed(const sh_backend_packed& packed) {
    const auto wrong = [](const char* what) { return fail(SH_ERROR_INVALID_ARGUMENT, "packed elements: %s", what); };
    if (!element_bytes(packed.format)) return wrong("the format is unknown");
    if (packed.chunks < 1 || packed.chunks > SH_BACKEND_UNPACK_CHUNKS) return wrong("chunks is not from 1 to 128");
    const uint64_t before = uint64_t(packed.chunks - 1) * SH_BACKEND_CHUNK_ELEMENTS;
    if (packed.elements <= before || packed.elements > before + SH_BACKEND_CHUNK_ELEMENTS)
        return wrong("elements and chunks contradict each other");
    if (packed.from % 16 || packed.to % 16 || packed.failed % 4) return wrong("an address is not aligned");
    for (uint32_t i = 0; i < packed.chunks; i++)
        if (packed.places[i] >= packed.places[i + 1]) return wrong("the places of the chunks do not ascend");
    return SH_OK;
}

inline sh_status check_tiles(const sh_backend_tiles& tiles) {
    const auto wrong = [](const char* what) { return fail(SH_ERROR_INVALID_ARGUMENT, "tiles: %s", what); };
    if (!element_bytes(tiles.format)) return wrong("the format is unknown");
    if (!tiles.elements) return wrong("there are no elements");
    if (!tiles.device || !tiles.host || !tiles.headers) return wrong("an address is 0");
    const auto is_odd = [](const void* memory) { return reinterpret_cast<uintptr_t>(memory) % 16 != 0; };
    if (tiles.device % 16 || is_odd(tiles.host) || is_odd(tiles.headers)) return wrong("an address is not aligned");
    return SH_OK;
}

}  // namespace stagehand::support
