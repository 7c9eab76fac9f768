// PackedReader: reads ranges of packed tensors, and unpacks them.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "base/status.h"
#include "codec/frame_index.h"
#include "transfer/source/reader.h"
#include "transfer/source/source.h"

namespace stagehand::transfer {

// Reads the index of the packed tensor at the source's place. SH_ERROR_INVALID_ARGUMENT: it is no packed tensor.
// SH_ERROR_SOURCE: it cannot be read.
Status read_index(const Source& source, codec::FrameIndex* out);

// Reads `count` chunks as they are. Compares the checksum of a chunk the first time: comparing takes a third as long as
// reading, and only workers read these sources. SH_ERROR_SOURCE: a chunk is not as it was packed.
Status read_chunks(Reader& reader, const Source& source, uint64_t chunk, uint64_t count, char* to);

// Used by one thread.
class PackedReader {
public:
    using ReadPlain = std::function<Status(const ReadRequest&)>;

    // `read_plain` reads the bytes of the packed tensor as they are. Reads whole chunks, and checks them.
    // SH_ERROR_SOURCE: a chunk is not as it was packed.
    Status read(const ReadRequest& request, const ReadPlain& read_plain);

private:
    std::vector<char> packed_;  // the chunks, if they are not in memory
};

}  // namespace stagehand::transfer
