// ResidencyLog: the entries of an arbiter's journal, copied inside the arbiter's lock. Another thread reads them in the
// same order.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/device/arbiter.h"

namespace stagehand::test {

using core::Arbiter;

// One change of state, and the arbiter's state after it.
struct Record {
    uint64_t number = 0;
    Arbiter::Change change = Arbiter::Change::join;
    const core::Tenant* tenant = nullptr;
    std::string name;  // of the tenant, when it joins
    uint64_t now_ns = 0;
    uint64_t pages = 0;
    std::optional<core::Needs> needs;
    std::optional<core::Holding> holding;
    std::optional<core::GuestTerms> terms;
    policy::Priority priority = policy::Priority::none;
    sh_status status = SH_OK;
    std::vector<Arbiter::Standing> standings;
    Arbiter::Figures figures;
};

class ResidencyLog {
public:
    void append(const Arbiter::Entry& entry, std::span<const Arbiter::Standing> standings,
                const Arbiter::Figures& figures) {
        Record record;
        record.change = entry.change;
        record.tenant = entry.tenant;
        if (entry.change == Arbiter::Change::join) record.name = entry.tenant->tenant_name();
        record.now_ns = entry.now_ns;
        record.pages = entry.pages;
        if (entry.needs) record.needs = *entry.needs;
        if (entry.holding) record.holding = *entry.holding;
        if (entry.terms) record.terms = *entry.terms;
        record.priority = entry.priority;
        record.status = entry.status;
        record.standings.assign(standings.begin(), standings.end());
        record.figures = figures;
        std::unique_lock lock(mutex_);
        room_.wait(lock, [&] { return waiting_.size() < kMost || ended_; });
        record.number = count_++;
        waiting_.push_back(std::move(record));
        if (waiting_.size() == 1) some_.notify_one();
    }

    // Waits for a new entry and returns all entries since the last call. Returns nothing if the log has ended.
    std::deque<Record> take() {
        std::unique_lock lock(mutex_);
        some_.wait(lock, [&] { return !waiting_.empty() || ended_; });
        std::deque<Record> taken;
        taken.swap(waiting_);
        room_.notify_all();
        return taken;
    }

    uint64_t count() {
        std::lock_guard lock(mutex_);
        return count_;
    }

    void end() {
        std::lock_guard lock(mutex_);
        ended_ = true;
        some_.notify_all();
        room_.notify_all();
    }

private:
    static constexpr size_t kMost = 20000;  // a writer waits for the reader beyond this
    std::mutex mutex_;
    std::condition_variable some_, room_;
    std::deque<Record> waiting_;
    uint64_t count_ = 0;
    bool ended_ = false;
};

}  // namespace stagehand::test
