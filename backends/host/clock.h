// The clock of the host backend: monotonic nanoseconds, and a sleep until a given moment.
#pragma once

#include <ctime>

#include <cerrno>
#include <cstdint>

namespace stagehand::host {

inline uint64_t now_ns() {
    timespec now = {};
    clock_gettime(CLOCK_MONOTONIC, &now);
    return static_cast<uint64_t>(now.tv_sec) * 1000000000u + static_cast<uint64_t>(now.tv_nsec);
}

// Sleeps until a moment, not for a time. So a late wake-up does not add to the next sleep.
inline void sleep_until(uint64_t deadline_ns) {
    if (deadline_ns <= now_ns()) return;
    const timespec deadline = {static_cast<time_t>(deadline_ns / 1000000000u),
                               static_cast<long>(deadline_ns % 1000000000u)};
    while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &deadline, nullptr) == EINTR) {
    }
}

}  // namespace stagehand::host
