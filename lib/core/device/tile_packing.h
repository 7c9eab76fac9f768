// Tile packing: whether a device packs what crosses the link, and what it packs. In host memory packed contents lie in
// tiles apart (lib/codec/tiles_apart.h).
#pragma once

#include <cstdint>

#include "backend/backend_device.h"
#include "base/status.h"
#include "codec/tiles_apart.h"

namespace stagehand::core {

// What an address on the device must be a multiple of.
inline constexpr uint64_t kPackedAlignment = 16;

// Packs something and unpacks it again, and waits for that. SH_ERROR_UNSUPPORTED if the device does not pack. Not free:
// a driver may translate programs for it.
Status try_packing(BackendDevice& device, sh_stream stream);

// What the device packs into the tiles, or unpacks from there.
inline sh_backend_tiles tiles_at(uint64_t address, const codec::TilesApart& tiles) {
    return {sizeof(sh_backend_tiles),
            static_cast<uint32_t>(tiles.format),
            address,
            tiles.bodies,
            tiles.elements,
            tiles.headers};
}

}  // namespace stagehand::core
