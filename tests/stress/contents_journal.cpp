#include "contents_journal.h"

#include <algorithm>
#include <chrono>
#include <cstdio>

namespace stagehand::test {

uint64_t steady_ns() {
    return static_cast<uint64_t>(
        std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch())
            .count());
}

void ThreadJournal::begin(const char* call, uint32_t party, uint32_t block, uint32_t version) {
    Slot& slot = slots_[count_ % kSlots];
    slot.where = uint64_t(party) << 32 | block;
    slot.version = version;
    slot.status = SH_OK;
    slot.ended_ns = 0;
    slot.began_ns = steady_ns();
    slot.call = call;
    count_++;
}

void ThreadJournal::end(sh_status status) {
    Slot& slot = slots_[(count_ - 1) % kSlots];
    slot.status = status;
    slot.ended_ns = steady_ns();
}

ThreadJournal::Entry ThreadJournal::read(const Slot& slot) {
    Entry entry;
    entry.party = static_cast<uint32_t>(slot.where >> 32);
    entry.block = static_cast<uint32_t>(slot.where);
    entry.version = slot.version;
    entry.call = slot.call;
    entry.began_ns = slot.began_ns;
    entry.ended_ns = slot.ended_ns;
    entry.status = slot.status;
    return entry;
}

std::vector<ThreadJournal::Entry> ThreadJournal::entries(uint32_t thread) const {
    std::vector<Entry> entries;
    const uint64_t end = count_;
    for (uint64_t k = end > kSlots ? end - kSlots : 0; k < end; k++) {
        entries.push_back(read(slots_[k % kSlots]));
        entries.back().thread = thread;
    }
    return entries;
}

ThreadJournal::Entry ThreadJournal::under_way() const {
    const uint64_t count = count_;
    if (!count) return {};
    const Entry entry = read(slots_[(count - 1) % kSlots]);
    return entry.ended_ns ? Entry() : entry;
}

Journal::Journal(size_t threads) {
    for (size_t t = 0; t < threads; t++) threads_.push_back(std::make_unique<ThreadJournal>());
}

std::string Journal::story(uint32_t party, const std::vector<uint32_t>& blocks, size_t lines) const {
    std::vector<ThreadJournal::Entry> all;
    for (uint32_t t = 0; t < threads_.size(); t++) {
        const auto entries = threads_[t]->entries(t);
        all.insert(all.end(), entries.begin(), entries.end());
    }
    std::erase_if(all, [&](const ThreadJournal::Entry& entry) {
        const bool of_block = std::find(blocks.begin(), blocks.end(), entry.block) != blocks.end();
        return !entry.call || entry.party != party || !(of_block || entry.block == kNoBlock || blocks.empty());
    });
    std::sort(all.begin(), all.end(), [](const auto& a, const auto& b) { return a.began_ns < b.began_ns; });
    std::string text;
    for (size_t k = all.size() > lines ? all.size() - lines : 0; k < all.size(); k++) {
        const ThreadJournal::Entry& entry = all[k];
        char line[256];
        const double began = static_cast<double>(entry.began_ns - began_ns_) / 1e6;
        int at = std::snprintf(line, sizeof line, "  %10.3f ms  thread %u  %s", began, entry.thread, entry.call);
        const auto add = [&](const char* format, auto... values) {
            at += std::snprintf(line + at, sizeof line - static_cast<size_t>(at), format, values...);
        };
        if (entry.block != kNoBlock) add(" block %u", entry.block);
        if (entry.version) add(" version %u", entry.version);
        if (entry.ended_ns)
            add(": %s after %.3f ms", sh_status_string(entry.status),
                static_cast<double>(entry.ended_ns - entry.began_ns) / 1e6);
        else
            add(": has not returned");
        text += std::string(line) + "\n";
    }
    return text;
}

}  // namespace stagehand::test
