// Checksums of packed bytes.
#pragma once

#include <cstddef>
#include <cstdint>

namespace stagehand::codec {

// XXH3, 64 bits.
uint64_t checksum(const void* data, size_t bytes);

}  // namespace stagehand::codec
