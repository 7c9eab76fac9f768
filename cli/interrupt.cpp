#include "interrupt.h"

#include <algorithm>
#include <csignal>
#include <initializer_list>

#include <poll.h>

#include "exit_code.h"

namespace stagehand::cli {

namespace {

volatile std::sig_atomic_t caught = 0;

void on_signal(int signal) {
    caught = signal;
    // The next signal, SIGINT or SIGTERM, has its default effect.
    std::signal(SIGINT, SIG_DFL);
    std::signal(SIGTERM, SIG_DFL);
}

}  // namespace

void catch_interrupts() {
    for (const int signal : {SIGINT, SIGTERM}) {
        struct sigaction before = {};
        sigaction(signal, nullptr, &before);
        if (before.sa_handler == SIG_IGN) continue;
        struct sigaction action = {};
        action.sa_handler = on_signal;
        // System calls are restarted, so that no step fails because of the signal.
        action.sa_flags = SA_RESTART;
        sigaction(signal, &action, nullptr);
    }
}

int interrupted() { return caught; }

bool wait_until(int descriptor, short events, std::chrono::steady_clock::time_point until) {
    while (interrupted() == 0) {
        const auto now = std::chrono::steady_clock::now();
        const auto left = std::chrono::ceil<std::chrono::milliseconds>(until - now).count();
        if (left <= 0) return false;
        pollfd polled = {descriptor, events, 0};
        // Waits in short slices, because a signal may come just before the wait.
        if (poll(&polled, 1, static_cast<int>(std::min<long>(left, 100))) > 0) return true;
    }
    return false;
}

void end_if_interrupted() {
    if (const int signal = interrupted())
        throw CommandError(static_cast<ExitCode>(static_cast<int>(ExitCode::signalled) + signal), "interrupted");
}

}  // namespace stagehand::cli
