// Source: the place that the bytes of a segment come from, and the handles for reading it.
#pragma once

#include <atomic>
#include <cstdint>

#include <stagehand/runtime.h>

#include "base/status.h"

namespace stagehand::codec {
class FrameIndex;
}

namespace stagehand::transfer {

struct OpenFile;

// The origin of one segment. `kind` is an SH_SOURCE_* value. The owner of the segment keeps alive what the source
// refers to while a load may read it.
struct Source {
    uint32_t kind = 0;
    void* pointer = nullptr;    // POINTER, MAPPED, DEVICE
    int file = -1;              // FILE: the library's own file descriptor
    int direct_file = -1;       // FILE: the same file opened for direct reads, or -1
    uint64_t file_offset = 0;   // FILE; FILL: added to the offsets that the callback gets
    sh_fill_fn fill = nullptr;  // FILL
    void* user_data = nullptr;  // FILL
    uint64_t bytes = 0;         // length of the segment
    // POINTER, MAPPED, FILE: what the packed tensor holds, or null. The place above is that of the packed tensor.
    const codec::FrameIndex* packed = nullptr;
    uint64_t packed_bytes = 0;
    uint64_t packed_offset = 0;             // of the segment, in the contents of the packed tensor
    std::atomic<bool>* compared = nullptr;  // packed: for each chunk, whether read_chunks() found its checksum right
    uint64_t place_bytes() const { return packed ? packed_bytes : bytes; }  // where the bytes are read

    OpenFile* opened = nullptr;  // FILE: shared by all sources in the same file; null: nothing is known of the file
};

// Opens what the library needs to read the source. All sources of one FILE share two descriptors. One of them is for
// direct reads, if the file system allows them. The caller's descriptor is not kept. After a success the caller closes
// the source by close_source(). The text of SH_ERROR_INVALID_ARGUMENT names the wrong field. Thread-safe.
Status open_source(const sh_segment& segment, Source* out_source);
void close_source(Source* source);

// The memory of a segment. The library writes to it only for mutable blocks, whose engine has said that it may.
inline void* writable(const void* pointer) { return const_cast<void*>(pointer); }

}  // namespace stagehand::transfer
