// Watchdog: fails the test and ends the process if a call does not return within its time, because nothing can be
// undone then. The watchdog also prints the last calls before a crash.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <string>
#include <thread>
#include <utility>

#include "contents_journal.h"

namespace stagehand::test {

// How long the threads of this process were ready to run and had no processor, all together. A machine with other work
// can delay a call for minutes, which is no fault of the library.
class Starvation {
public:
    // Takes a sample at most once a second.
    void sample(uint64_t now_ns);
    // The time between the last sample before `began_ns` and now. Threads that have ended are counted no more.
    uint64_t since(uint64_t began_ns) const;

private:
    static uint64_t without_processor_ns();

    std::deque<std::pair<uint64_t, uint64_t>> samples_;  // time, and time without a processor up to it
};

class Watchdog {
public:
    // `where` says how to repeat the run: the environment and the seed.
    Watchdog(const Journal& journal, std::string where);
    ~Watchdog();
    Watchdog(const Watchdog&) = delete;
    Watchdog& operator=(const Watchdog&) = delete;

    std::string story() const;  // of all blocks

private:
    void watch();

    const Journal& journal_;
    const std::string where_;
    std::atomic<bool> done_{false};
    Starvation starvation_;
    std::thread thread_;
};

}  // namespace stagehand::test
