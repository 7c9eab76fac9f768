// Watchdog: fails the test and ends the process if a call does not return within its time, because nothing can be
// undone then. The watchdog also prints the last calls before a crash.
#pragma once

#include <atomic>
#include <string>
#include <thread>

#include "contents_journal.h"

namespace stagehand::test {

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
    uint64_t late_since_ns_ = 0;         // when the late call began that the watchdog looks at
    uint64_t without_processor_ns_ = 0;  // of all threads, when that call became late
    std::thread thread_;
};

}  // namespace stagehand::test
