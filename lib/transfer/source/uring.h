// Uring: a queue of reads in io_uring, where the library is built with it and the system allows it.
#pragma once

#include <cstdint>
#include <memory>

namespace stagehand::transfer {

// For one thread.
class Uring {
public:
    Uring();
    ~Uring();
    Uring(const Uring&) = delete;
    Uring& operator=(const Uring&) = delete;

    // 0, or an errno: ENOSYS when the library is built without it.
    int open(uint32_t depth);
    // Queues a read; at most `depth` are under way. It starts at the next wait().
    void add_read(uint32_t tag, int file, void* to, uint64_t bytes, uint64_t offset);
    // Waits for a read, gives its tag, and its bytes or -errno.
    void wait(uint32_t* out_tag, int64_t* out_result);

private:
    struct State;
    std::unique_ptr<State> state_;
};

}  // namespace stagehand::transfer
