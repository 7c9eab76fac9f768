// Compares blocks on the device with the model's files, by checksum.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include <stagehand/stagehand.h>

#include "library.h"
#include "model/grouping.h"
#include "model_files.h"

namespace stagehand::cli {

// Checksums are XXH3, 64 bits. The checksum of a file's bytes is computed once, when it is first needed, from plain
// reads that do not go through the library.
class BlockVerifier {
public:
    BlockVerifier(sh_device* device, const std::vector<model::Block>& blocks, const ModelFiles& files);

    // Whether the bytes on the device of block number `index`, which is held as `block`, equal the bytes of the file.
    // Waits for the work queued on `stream`.
    bool equal(sh_runtime* runtime, sh_block block, sh_stream stream, std::size_t index);

private:
    std::uint64_t file_checksum(const model::Block& block);
    std::uint64_t device_checksum(sh_runtime* runtime, sh_block block, sh_stream stream, const model::Block& known);

    const std::vector<model::Block>& blocks_;
    const ModelFiles& files_;
    HostMemory buffer_;
    std::vector<std::optional<std::uint64_t>> file_checksums_;
};

}  // namespace stagehand::cli
