#include "core/spill/checksum.h"

#include <vector>

#define XXH_INLINE_ALL  // the library needs no other library for it at run time
#include <xxhash.h>

namespace stagehand::core {

uint64_t checksum(const void* data, uint64_t bytes) { return XXH3_64bits(data, bytes); }

Status checksum_on_device(BackendDevice& device, sh_stream stream, uint64_t address, uint64_t bytes, uint64_t* out) {
    std::vector<char> read(bytes);
    SH_TRY(device.copy_to_host(stream, read.data(), address, bytes));
    SH_TRY(device.stream_synchronize(stream));
    *out = checksum(read.data(), bytes);
    return Status();
}

}  // namespace stagehand::core
