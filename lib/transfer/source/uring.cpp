#include "transfer/source/uring.h"

#include <cerrno>
#include <vector>

#if STAGEHAND_HAVE_LIBURING
#include <liburing.h>
#endif

#include <sched.h>
#include <unistd.h>

namespace stagehand::transfer {

#if STAGEHAND_HAVE_LIBURING

struct Uring::State {
    struct io_uring ring = {};
    bool open = false;
    ~State() {
        if (open) io_uring_queue_exit(&ring);
    }
};

namespace {

// A sandbox may allow to set up a ring and forbid to use it. So this function runs one operation.
int try_out(struct io_uring* ring) {
    io_uring_prep_nop(io_uring_get_sqe(ring));
    int result = 0;
    do {
        result = io_uring_submit_and_wait(ring, 1);
    } while (result == -EINTR);
    struct io_uring_cqe* done = nullptr;
    if (result < 0 || io_uring_peek_cqe(ring, &done) != 0) return result < 0 ? -result : EIO;
    io_uring_cqe_seen(ring, done);
    return 0;
}

}  // namespace

Uring::Uring() = default;
Uring::~Uring() = default;

int Uring::open(uint32_t depth) {
    auto state = std::make_unique<State>();
    if (const int result = io_uring_queue_init(depth, &state->ring, 0); result < 0) return -result;
    state->open = true;
    // The process has closed a standard descriptor. This ring has its number until another one is open.
    if (state->ring.ring_fd <= STDERR_FILENO) return open(depth);
    if (const int error = try_out(&state->ring)) return error;
    state_ = std::move(state);
    return 0;
}

void Uring::add_read(uint32_t tag, int file, void* to, uint64_t bytes, uint64_t offset) {
    struct io_uring_sqe* const entry = io_uring_get_sqe(&state_->ring);  // not null: at most `depth` are under way
    io_uring_prep_read(entry, file, to, static_cast<unsigned>(bytes), offset);
    io_uring_sqe_set_data64(entry, tag);
}

void Uring::add_write(uint32_t tag, int file, const void* from, uint64_t bytes, uint64_t offset) {
    struct io_uring_sqe* const entry = io_uring_get_sqe(&state_->ring);  // not null: at most `depth` are under way
    io_uring_prep_write(entry, file, from, static_cast<unsigned>(bytes), offset);
    io_uring_sqe_set_data64(entry, tag);
}

void Uring::wait(uint32_t* out_tag, int64_t* out_result) {
    struct io_uring_cqe* done = nullptr;
    // Refusals are temporary (no memory for a request, an interruption). Reads that were not accepted stay queued.
    while (io_uring_submit_and_wait(&state_->ring, 1) < 0 || io_uring_peek_cqe(&state_->ring, &done) != 0)
        sched_yield();
    *out_tag = static_cast<uint32_t>(io_uring_cqe_get_data64(done));
    *out_result = done->res;
    io_uring_cqe_seen(&state_->ring, done);
}

#else

struct Uring::State {};

Uring::Uring() = default;
Uring::~Uring() = default;
int Uring::open(uint32_t) { return ENOSYS; }
void Uring::add_read(uint32_t, int, void*, uint64_t, uint64_t) {}
void Uring::add_write(uint32_t, int, const void*, uint64_t, uint64_t) {}
void Uring::wait(uint32_t*, int64_t* out_result) { *out_result = -ENOSYS; }

#endif

}  // namespace stagehand::transfer
