// Questions to the page cache: whether a range of a file can be read without waiting for a disk.
#pragma once

#include <cstddef>
#include <cstdint>

#include <sys/types.h>

namespace stagehand::platform {

enum class CacheProbe {
    kBest,    // ask the kernel for the whole range; where it does not tell, sample
    kSample,  // try to read a byte at both ends and between without waiting
};

enum class Cached { kNo, kYes, kUnknown };

// Whether the range is in the page cache, wholly as far as that can be told. Unknown: the file system does not
// tell.
Cached in_page_cache(int file, uint64_t offset, uint64_t bytes, CacheProbe probe = CacheProbe::kBest);

// Reads what can be read without waiting: the number of bytes from the range's start (0: none, or not known
// to be there), or -errno. A range that is missing may be read ahead by the kernel because of this: it is for
// ranges that are probably there.
ssize_t read_cached(int file, void* to, size_t bytes, uint64_t offset);

}  // namespace stagehand::platform
