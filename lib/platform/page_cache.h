// Asks the page cache whether a range of a file can be read without waiting for a disk.
#pragma once

#include <cstddef>
#include <cstdint>

#include <sys/types.h>

namespace stagehand::platform {

enum class CacheProbe {
    kBest,    // ask the kernel for the whole range; take samples if the kernel does not answer
    kSample,  // try to read one byte at both ends and at steps between, without waiting
};

enum class Cached { kNo, kYes, kUnknown };

// Returns whether the range is in the page cache. `kYes` means the whole range, as far as the kernel or the samples can
// tell. `kUnknown` means that the file system gives no answer.
Cached in_page_cache(int file, uint64_t offset, uint64_t bytes, CacheProbe probe = CacheProbe::kBest);

// Reads the bytes that can be read without waiting. Returns their number from the start of the range, or -errno. A
// result of 0 means that no byte was there, or that the state is unknown. The call may make the kernel read a missing
// range ahead, so use it only for ranges that are probably there.
ssize_t read_cached(int file, void* to, size_t bytes, uint64_t offset);

}  // namespace stagehand::platform
