#include "codec/checksum.h"

#define XXH_INLINE_ALL  // the library needs no other library for it at run time
#include <xxhash.h>

namespace stagehand::codec {

uint64_t checksum(const void* data, size_t bytes) { return XXH3_64bits(data, bytes); }

}  // namespace stagehand::codec
