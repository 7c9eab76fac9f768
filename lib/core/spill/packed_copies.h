// Packed copies: saved tensors that cross the link packed.
#pragma once

#include <cstdint>

#include "base/status.h"
#include "core/device/tile_packing.h"
#include "core/spill/copies.h"

namespace stagehand::core {

// Whether the copy has elements of a known format, is aligned, and is large enough to be worth it.
bool may_be_packed(const SavedCopy& copy);
// The bytes of the buffer that the copy needs.
uint64_t room_of(const SavedCopy& copy);
// Whether it can come back to this address.
Status check_address(const SavedCopy& copy, uint64_t address);
// What the device packs, or unpacks to this address.
sh_backend_tiles tiles_of(const SavedCopy& copy, uint64_t address);
// Of the tensor's bytes, as host memory has them.
uint64_t checksum_in_host(const SavedCopy& copy);

}  // namespace stagehand::core
