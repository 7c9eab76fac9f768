// DeviceBytes: tests see and change the bytes of device memory by this class, in a stream or on the calling thread. A
// function works directly on the memory if the host reaches it. On a GPU, the driver copies the bytes in the same
// stream to or from memory that the function works on.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include <stagehand/stagehand.h>

namespace stagehand::test {

class DeviceBytes {
public:
    using Look = std::function<void(const uint8_t*)>;
    using Change = std::function<void(uint8_t*)>;

    explicit DeviceBytes(sh_device* device);

    // The stream does the work of each call when it reaches the work. On SH_STREAM_HOST, the work is done before the
    // call returns. A call that fails has no effect on the device. `busy_ns` keeps the stream busy for that long in
    // addition.
    sh_status look(sh_stream stream, const void* address, uint64_t bytes, Look look, int64_t busy_ns = 0);
    sh_status change(sh_stream stream, void* address, uint64_t bytes, Change change);
    sh_status write(sh_stream stream, void* address, const std::vector<uint8_t>& bytes);

    // Runs on the calling thread. The test fails if the bytes cannot be read.
    std::vector<uint8_t> read(const void* address, uint64_t bytes);

    // Waits for all work, also on streams that were destroyed before they finished. A GPU finishes the work that is
    // queued on such streams.
    void settle();

private:
    sh_status noted(sh_status status, sh_stream stream, const void* address, uint64_t bytes, bool writes);
    sh_status look_at(sh_stream stream, const void* address, uint64_t bytes, Look look, int64_t busy_ns);
    sh_status change_at(sh_stream stream, void* address, uint64_t bytes, Change change);
    sh_status write_at(sh_stream stream, void* address, const std::vector<uint8_t>& bytes);
    sh_status work(sh_stream stream, void* address, Change work, int64_t busy_ns);

    sh_device* const device_;
    const bool on_host_;
};

// Prepares access to this GPU's memory, and throws if there is no access. Sets memory aside for `largest_bytes` bytes
// at a time.
void reach_gpu_memory(int ordinal, uint64_t largest_bytes);

}  // namespace stagehand::test
