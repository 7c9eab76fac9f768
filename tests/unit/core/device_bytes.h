// DeviceBytes: how tests see and change the bytes of device memory, in a stream or on the calling thread. Where the host reaches the memory
// that is a function over it; on a GPU they are copied by its driver, in the same stream, from or to memory that such a function works on.
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

    // Each call's work is done when the stream comes to it; on SH_STREAM_HOST before the call returns. A call that fails queues nothing that
    // anybody would notice. A stream that `busy_ns` is given for is that busy beside.
    sh_status look(sh_stream stream, const void* address, uint64_t bytes, Look look, int64_t busy_ns = 0);
    sh_status change(sh_stream stream, void* address, uint64_t bytes, Change change);
    sh_status write(sh_stream stream, void* address, const std::vector<uint8_t>& bytes);

    // On the calling thread. Fails the test when it cannot.
    std::vector<uint8_t> read(const void* address, uint64_t bytes);

    // Waits for all of it, on streams too that are destroyed and not done: a GPU's finish what is queued on them.
    void settle();

private:
    sh_status work(sh_stream stream, void* address, Change work, int64_t busy_ns);

    sh_device* const device_;
    const bool on_host_;
};

// Looks for the way to this GPU's memory; throws where there is none. Memory is set aside for so many bytes at a time.
void reach_gpu_memory(int ordinal, uint64_t largest_bytes);

}  // namespace stagehand::test
