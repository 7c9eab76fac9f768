// NoSignals: no write of this thread raises a signal while it lives. A write to a pipe that nobody reads then fails
// with EPIPE, and a write beyond RLIMIT_FSIZE with EFBIG.
#pragma once

#include <cerrno>
#include <csignal>
#include <ctime>

#include <pthread.h>

namespace stagehand {

class NoSignals {
public:
    NoSignals() noexcept {
        sigset_t blocked, pending;
        sigemptyset(&blocked);
        sigemptyset(&raised_);
        for (const int signal : kSignals) sigaddset(&blocked, signal);
        pthread_sigmask(SIG_BLOCK, &blocked, &before_);
        sigpending(&pending);
        // One that is pending already is another's, and stays.
        for (const int signal : kSignals)
            if (!sigismember(&pending, signal)) sigaddset(&raised_, signal);
    }
    // Takes what was raised. errno stays that of the write.
    ~NoSignals() {
        const int error = errno;
        const timespec no_time = {};
        while (sigtimedwait(&raised_, nullptr, &no_time) > 0 || errno == EINTR) {
        }
        pthread_sigmask(SIG_SETMASK, &before_, nullptr);
        errno = error;
    }
    NoSignals(const NoSignals&) = delete;
    NoSignals& operator=(const NoSignals&) = delete;

private:
    static constexpr int kSignals[] = {SIGPIPE, SIGXFSZ};
    sigset_t before_, raised_;
};

}  // namespace stagehand
