#include "interrupt.h"

#include <csignal>
#include <initializer_list>

namespace stagehand::cli {

namespace {

volatile std::sig_atomic_t caught = 0;

void on_signal(int signal) {
    caught = signal;
    // The next one, whichever it is, meets the default.
    std::signal(SIGINT, SIG_DFL);
    std::signal(SIGTERM, SIG_DFL);
}

}  // namespace

void catch_interrupts() {
    for (const int signal : {SIGINT, SIGTERM}) {
        struct sigaction before = {};
        sigaction(signal, nullptr, &before);
        if (before.sa_handler == SIG_IGN) {
            continue;
        }
        struct sigaction action = {};
        action.sa_handler = on_signal;
        // Calls are not interrupted, so that no step fails by it.
        action.sa_flags = SA_RESTART;
        sigaction(signal, &action, nullptr);
    }
}

int interrupted() { return caught; }

}  // namespace stagehand::cli
