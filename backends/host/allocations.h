// Allocations: the memory of a host device that does not map pages (map_pages=0). Addresses come with their memory, in
// one piece.
#pragma once

#include <cstdint>
#include <map>
#include <mutex>

#include <stagehand/backend.h>

#include "host/device_memory.h"

namespace stagehand::host {

// Thread-safe. Each piece is one page of the device's memory, as large as the piece.
class Allocations {
public:
    explicit Allocations(DeviceMemory& memory) : memory_(memory) {}

    sh_status reserve(uint64_t bytes, uint64_t alignment, uint64_t* out_address);
    sh_status free(uint64_t address, uint64_t bytes);

private:
    struct Piece {
        uint64_t bytes = 0;
        sh_backend_page page = 0;
    };

    sh_status map_new(uint64_t address, uint64_t bytes);

    DeviceMemory& memory_;
    std::mutex mutex_;
    std::map<uint64_t, Piece> pieces_;  // by address
};

}  // namespace stagehand::host
