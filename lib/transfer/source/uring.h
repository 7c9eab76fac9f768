// Uring: a queue of reads and writes in io_uring. It works if the library is built with liburing and the system allows
// io_uring.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "base/no_throw.h"
#include "base/status.h"

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
    // Has `count` requests done, with `depth` of them under way. `add(tag, i)` queues number i, and `done(tag, i,
    // result)` returns a Status: after a failure no more are begun. None is under way when the call returns.
    template <class Add, class Done>
    Status run(size_t count, Add&& add, Done&& done) {
        Status status;
        size_t next = 0, ended = 0;
        while (ended < next || (status.ok() && next < count)) {
            for (; status.ok() && !idle_.empty() && next < count; next++) {
                const uint32_t tag = idle_.back();
                idle_.pop_back();
                number_[tag] = next;
                add(tag, next);
            }
            uint32_t tag = 0;
            int64_t result = 0;
            wait(&tag, &result);
            idle_.push_back(tag);
            ended++;
            if (status.ok()) status = no_throw([&] { return done(tag, number_[tag], result); });
        }
        return status;
    }
    // Whether the engine has closed the queue. What is queued then fails with EBADF.
    bool is_lost() const;

private:
    struct State;
    std::unique_ptr<State> state_;
    std::vector<uint32_t> idle_;  // tags
    std::vector<size_t> number_;  // of the request that a tag has
};

}  // namespace stagehand::transfer
