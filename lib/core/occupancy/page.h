// Page: the unit in which contents leave the device, are compared with their copy in host memory, and come back.
#pragma once

#include <cstdint>

#include <stagehand/backend.h>

namespace stagehand::core {

// Larger pages are copied whole for one byte that changed. Smaller pages make more digests, and their hash is slower.
constexpr uint64_t kLargestContentPage = uint64_t(2) << 20;

// Device memory that an engine names.
struct AddressRange {
    uint64_t begin = 0, end = 0;
};

struct Page {
    static constexpr uint64_t kNowhere = ~uint64_t(0);

    uint64_t offset = 0;  // in the extent
    uint64_t bytes = 0;
    uint64_t place = kNowhere;  // offset in the host memory of the extent
    bool used = true;           // the contents have to come back

    // Host memory has the contents of the last time that the page left. If `hashed`, `digest` is theirs.
    bool on_host = false;
    bool hashed = false;
    // The page came back with these contents, and nothing is known to have changed them.
    bool same = false;
    sh_backend_digest digest = {};
    // SH_FORMAT_* of the elements if host memory has them packed, or will once the page has left. 0: as they are.
    uint32_t packed = 0;

    // In this pause: whether the page is copied, and the digest of what the device has, if `compared`.
    bool copied = true;
    bool compared = false;
    sh_backend_digest found = {};
};

}  // namespace stagehand::core
