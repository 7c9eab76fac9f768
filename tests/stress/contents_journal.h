// Journal: the last calls of each thread, for the report of a failure. Writing an entry takes no lock, so the journal
// hides no race.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <stagehand/base.h>

namespace stagehand::test {

constexpr uint32_t kNoBlock = UINT32_MAX;  // a call that concerns the whole runtime, or several blocks

uint64_t steady_ns();

// The call that a thread is in, and its last calls.
class ThreadJournal {
public:
    void begin(const char* call, uint32_t party, uint32_t block, uint32_t version);
    void end(sh_status status);

    struct Entry {
        uint32_t thread = 0, party = 0, block = 0, version = 0;
        const char* call = nullptr;
        uint64_t began_ns = 0, ended_ns = 0;  // ended 0: it has not returned
        sh_status status = SH_OK;
    };
    std::vector<Entry> entries(uint32_t thread) const;  // in their order
    // Returns the call that has not returned, or an entry without a name.
    Entry under_way() const;

private:
    struct Slot {  // read by others while it is written: then a line of the story is wrong, no more
        std::atomic<const char*> call{nullptr};
        std::atomic<uint64_t> began_ns{0}, ended_ns{0}, where{0};
        std::atomic<uint32_t> version{0};
        std::atomic<sh_status> status{SH_OK};
    };
    static constexpr uint64_t kSlots = 512;
    static Entry read(const Slot& slot);

    std::array<Slot, kSlots> slots_;
    std::atomic<uint64_t> count_{0};
};

class Journal {
public:
    explicit Journal(size_t threads);
    ThreadJournal& of(size_t thread) { return *threads_[thread]; }
    const ThreadJournal& of(size_t thread) const { return *threads_[thread]; }
    size_t threads() const { return threads_.size(); }
    // Returns the last calls that concern any of these blocks of the party, or no particular block, one per line. An
    // empty list of blocks means all blocks.
    std::string story(uint32_t party, const std::vector<uint32_t>& blocks, size_t lines) const;

private:
    std::vector<std::unique_ptr<ThreadJournal>> threads_;
    const uint64_t began_ns_ = steady_ns();
};

}  // namespace stagehand::test
