#include "contents_watchdog.h"

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>

#include <gtest/gtest.h>
#include <unistd.h>

namespace stagehand::test {
namespace {

constexpr uint64_t kDeadlineNs = 60'000'000'000;
constexpr uint64_t kMostExcusedNs = 5 * kDeadlineNs;
constexpr uint64_t kSampleNs = 1'000'000'000;
constexpr size_t kSamples = (kDeadlineNs + kMostExcusedNs) / kSampleNs + 10;
constexpr int kSignals[] = {SIGSEGV, SIGBUS};

const Watchdog* watching = nullptr;
struct sigaction before[std::size(kSignals)];

// A signal means a view without memory, or a copy from memory that the library no longer owns. Prints the last calls,
// and then ends the process as the signal would have done.
void on_signal(int number) {
    for (size_t k = 0; k < std::size(kSignals); k++) sigaction(kSignals[k], &before[k], nullptr);
    std::printf("signal %d\n", number);
    std::fflush(stdout);
    if (watching) std::printf("%s", watching->story().c_str());
    std::fflush(stdout);
}

}  // namespace

void Starvation::sample(uint64_t now_ns) {
    if (!samples_.empty() && now_ns < samples_.back().first + kSampleNs) return;
    samples_.push_back({now_ns, without_processor_ns()});
    if (samples_.size() > kSamples) samples_.pop_front();
}

uint64_t Starvation::since(uint64_t began_ns) const {
    uint64_t before = 0;
    for (const auto& [at, waited] : samples_)
        if (at <= began_ns) before = waited;
    const uint64_t now = without_processor_ns();
    return now - std::min(now, before);
}

uint64_t Starvation::without_processor_ns() {
    uint64_t sum = 0;
    std::error_code error;
    for (const auto& task : std::filesystem::directory_iterator("/proc/self/task", error)) {
        uint64_t running = 0, waiting = 0;
        if (std::ifstream(task.path() / "schedstat") >> running >> waiting) sum += waiting;
    }
    return sum;
}

Watchdog::Watchdog(const Journal& journal, std::string where)
    : journal_(journal), where_(std::move(where)), thread_([this] { watch(); }) {
    watching = this;
    struct sigaction action = {};
    action.sa_handler = on_signal;
    for (size_t k = 0; k < std::size(kSignals); k++) sigaction(kSignals[k], &action, &before[k]);
}

Watchdog::~Watchdog() {
    for (size_t k = 0; k < std::size(kSignals); k++) sigaction(kSignals[k], &before[k], nullptr);
    watching = nullptr;
    done_ = true;
    thread_.join();
}

std::string Watchdog::story() const {
    std::string text = where_ + "\n";
    for (uint32_t party = 0; party < 2; party++)
        text += "runtime " + std::to_string(party) + ":\n" + journal_.story(party, {}, 60);
    return text;
}

void Watchdog::watch() {
    while (!done_) {
        std::this_thread::sleep_for(std::chrono::milliseconds(5));
        starvation_.sample(steady_ns());
        for (uint32_t t = 0; t < journal_.threads(); t++) {
            const ThreadJournal::Entry entry = journal_.of(t).under_way();
            const uint64_t now = steady_ns();
            if (!entry.call || now < entry.began_ns + kDeadlineNs) continue;
            const uint64_t excused = std::min(starvation_.since(entry.began_ns), kMostExcusedNs);
            if (now < entry.began_ns + kDeadlineNs + excused) continue;
            const std::string block = entry.block == kNoBlock ? "" : " of block " + std::to_string(entry.block);
            ADD_FAILURE() << entry.call << block << " on thread " << t << " has not returned after "
                          << kDeadlineNs / 1'000'000'000 << " s, " << where_ << "\n"
                          << journal_.story(entry.party, {entry.block}, 40);
            std::fflush(stdout);
            _exit(1);
        }
    }
}

}  // namespace stagehand::test
