// Watchdog: fails the test and ends the process when a call has not returned within its time, since nothing can be taken back then; and
// tells the story of a crash.
#pragma once

#include <atomic>
#include <string>
#include <thread>

#include "contents_journal.h"

namespace stagehand::test {

class Watchdog {
public:
    // `where` says what to try again: the environment and the seed.
    Watchdog(const Journal& journal, std::string where);
    ~Watchdog();
    Watchdog(const Watchdog&) = delete;
    Watchdog& operator=(const Watchdog&) = delete;

    std::string story() const;   // of all blocks

private:
    void watch();

    const Journal& journal_;
    const std::string where_;
    std::atomic<bool> done_{false};
    std::thread thread_;
};

}  // namespace stagehand::test
