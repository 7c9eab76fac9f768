#include "contents_watchdog.h"

#include <chrono>
#include <cstdio>

#include <gtest/gtest.h>
#include <unistd.h>

namespace stagehand::test {
namespace {

constexpr uint64_t kDeadlineNs = 60'000'000'000;

}  // namespace

Watchdog::Watchdog(const Journal& journal, std::string where) : journal_(journal), where_(std::move(where)), thread_([this] { watch(); }) {}

Watchdog::~Watchdog() {
    done_ = true;
    thread_.join();
}

void Watchdog::watch() {
    while (!done_) {
        std::this_thread::sleep_for(std::chrono::milliseconds(5));
        for (uint32_t t = 0; t < journal_.threads(); t++) {
            const ThreadJournal::Entry entry = journal_.of(t).under_way();
            const uint64_t now = steady_ns();
            if (!entry.call || now < entry.began_ns + kDeadlineNs) continue;
            const std::string block = entry.block == kNoBlock ? "" : " of block " + std::to_string(entry.block);
            ADD_FAILURE() << entry.call << block << " on thread " << t << " has not returned after " << kDeadlineNs / 1'000'000'000 << " s, " << where_
                          << "\n"
                          << journal_.story(entry.party, {entry.block}, 40);
            std::fflush(stdout);
            _exit(1);
        }
    }
}

}  // namespace stagehand::test
