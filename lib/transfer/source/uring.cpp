#include "transfer/source/uring.h"

#include <cerrno>
#include <numeric>
#include <vector>

#if STAGEHAND_HAVE_LIBURING
#include <liburing.h>
#endif

#include <sched.h>
#include <unistd.h>

#include "platform/descriptor.h"

namespace stagehand::transfer {

#if STAGEHAND_HAVE_LIBURING

struct Uring::State {
    struct io_uring ring = {};
    platform::FileIdentity identity;
    std::vector<uint32_t> refused;  // tags of what was queued and never begins; has room for all
    bool open = false;
    bool lost = false;
    ~State() {
        if (!open) return;
        if (!identity.is_at(ring.ring_fd)) ring.ring_fd = -1;  // the number is another file's
        io_uring_queue_exit(&ring);
    }

    // What the system has begun ends also without the descriptor, because the queues are mapped.
    void lose() {
        const unsigned begun = *ring.sq.khead;
        for (unsigned at = begun; at != ring.sq.sqe_tail; at++)
            refused.push_back(static_cast<uint32_t>(ring.sq.sqes[at & *ring.sq.kring_mask].user_data));
        lost = true;
    }
    // NULL if what is queued cannot begin.
    struct io_uring_sqe* entry(uint32_t tag) {
        struct io_uring_sqe* const made = lost ? nullptr : io_uring_get_sqe(&ring);  // at most `depth` are under way
        if (!made) refused.push_back(tag);
        return made;
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
    state->identity = platform::FileIdentity(state->ring.ring_fd);
    state->refused.reserve(depth);
    // The process has closed a standard descriptor. This ring has its number until another one is open.
    if (state->ring.ring_fd <= STDERR_FILENO) return open(depth);
    if (const int error = try_out(&state->ring)) return error;
    number_.resize(depth);
    idle_.resize(depth);
    std::iota(idle_.rbegin(), idle_.rend(), 0);
    state_ = std::move(state);
    return 0;
}

void Uring::add_read(uint32_t tag, int file, void* to, uint64_t bytes, uint64_t offset) {
    struct io_uring_sqe* const entry = state_->entry(tag);
    if (!entry) return;
    io_uring_prep_read(entry, file, to, static_cast<unsigned>(bytes), offset);
    io_uring_sqe_set_data64(entry, tag);
}

void Uring::add_write(uint32_t tag, int file, const void* from, uint64_t bytes, uint64_t offset) {
    struct io_uring_sqe* const entry = state_->entry(tag);
    if (!entry) return;
    io_uring_prep_write(entry, file, from, static_cast<unsigned>(bytes), offset);
    io_uring_sqe_set_data64(entry, tag);
}

void Uring::wait(uint32_t* out_tag, int64_t* out_result) {
    State& state = *state_;
    struct io_uring_cqe* done = nullptr;
    while (true) {
        if (!state.lost && !state.identity.is_at(state.ring.ring_fd)) state.lose();
        if (!state.refused.empty()) {
            *out_tag = state.refused.back();
            *out_result = -EBADF;
            state.refused.pop_back();
            return;
        }
        // Refusals are temporary (no memory for a request, an interruption). Reads that were not accepted stay queued.
        const int submitted = state.lost ? 0 : io_uring_submit_and_wait(&state.ring, 1);
        if (submitted >= 0 && io_uring_peek_cqe(&state.ring, &done) == 0) break;
        sched_yield();
    }
    *out_tag = static_cast<uint32_t>(io_uring_cqe_get_data64(done));
    *out_result = done->res;
    io_uring_cqe_seen(&state.ring, done);
}

bool Uring::is_lost() const { return state_ && state_->lost; }

#else

struct Uring::State {};

Uring::Uring() = default;
Uring::~Uring() = default;
int Uring::open(uint32_t) { return ENOSYS; }
void Uring::add_read(uint32_t, int, void*, uint64_t, uint64_t) {}
void Uring::add_write(uint32_t, int, const void*, uint64_t, uint64_t) {}
void Uring::wait(uint32_t*, int64_t* out_result) { *out_result = -ENOSYS; }
bool Uring::is_lost() const { return false; }

#endif

}  // namespace stagehand::transfer
