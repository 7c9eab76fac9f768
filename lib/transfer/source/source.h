// Source: where bytes come from that must pass through the staging ring, and how they are read.
#pragma once

#include <cstdint>

#include <stagehand/runtime.h>

#include "base/status.h"

namespace stagehand::transfer {

struct OpenFile;

// One segment's origin. `kind` is SH_SOURCE_*. The registry owns what it refers to (a duplicated descriptor,
// ...) and keeps it alive while a load may read it.
struct Source {
    uint32_t kind = 0;
    void* pointer = nullptr;    // POINTER, MAPPED, DEVICE
    int file = -1;              // FILE: the library's own descriptor
    int direct_file = -1;       // FILE: the same file opened past the page cache, or -1
    uint64_t file_offset = 0;   // FILE
    sh_fill_fn fill = nullptr;  // FILL
    void* user_data = nullptr;  // FILL
    uint64_t bytes = 0;         // length of the segment
    OpenFile* opened =
        nullptr;  // FILE: what all sources in the same file share; null: nothing is known of the file
};

// Opens what the source needs to be read. FILE: the sources of one file share two descriptors, however many
// segments it has, one of them for direct reads where the file system allows them; the caller's descriptor is
// not kept. On success the caller closes it by close_source(). SH_ERROR_INVALID_ARGUMENT names the field that
// is wrong. Thread-safe.
Status open_source(const sh_segment& segment, Source* out_source);
void close_source(Source* source);

}  // namespace stagehand::transfer
