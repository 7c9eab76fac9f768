// Uring: a queue of reads and writes in io_uring. It works if the library is built with liburing and the system allows
// io_uring.
#pragma once

#include <cstdint>
#include <memory>

namespace stagehand::transfer {

// Used by one thread.
class Uring {
public:
    Uring();
    ~Uring();
    Uring(const Uring&) = delete;
    Uring& operator=(const Uring&) = delete;

    // Returns 0 or an errno. ENOSYS means that the library is built without liburing.
    int open(uint32_t depth);
    // Queues a read or a write, which starts at the next wait(). At most `depth` of them may be under way.
    void add_read(uint32_t tag, int file, void* to, uint64_t bytes, uint64_t offset);
    void add_write(uint32_t tag, int file, const void* from, uint64_t bytes, uint64_t offset);
    // Waits until one of them is done. Returns its tag, and its bytes or -errno.
    void wait(uint32_t* out_tag, int64_t* out_result);
    // Whether the engine has closed the queue. What is queued then fails with EBADF.
    bool is_lost() const;

private:
    struct State;
    std::unique_ptr<State> state_;
};

}  // namespace stagehand::transfer
