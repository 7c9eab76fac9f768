// The stage of the residency test: a device, eight places for runtimes, a follower of the arbiter's log, and a watcher
// of the budget.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <map>
#include <random>
#include <shared_mutex>
#include <thread>

#include "api/guard.h"
#include "engine.h"
#include "host/host_backend.h"
#include "residency_log.h"
#include "residency_model.h"
#include "scale.h"

namespace stagehand::test {

inline constexpr size_t kRuntimes = 8;
inline constexpr size_t kThreads = 16;
inline constexpr size_t kOrdered = 9;
inline constexpr size_t kUnordered = 3;
inline constexpr size_t kBlocks = kOrdered + kUnordered;
inline constexpr size_t kMutable = 4;  // the thread that runs the step changes it
inline constexpr uint64_t kLeastPages = 80, kMostPages = 180;
inline constexpr size_t kScopes = 12;  // open at once, in all
inline constexpr size_t kShown = 20;
inline constexpr uint64_t kRounds = 5;  // of many threads, between which all are at rest

struct Setting {
    const char* device;
    uint64_t seed;
    uint64_t operations;
};

inline bool has_contents(const Setting& setting) { return std::string(setting.device) == "host"; }

inline DeviceSettings settings_of(const Setting& setting) {
    DeviceSettings settings{.name = setting.device, .budget_bytes = 140 * kPage};
    // Little more memory than the largest budget, so that what others leave of it counts too. Not where memory must be
    // in one piece.
    settings.options = has_contents(setting) ? (devices_without_pages() ? "capacity=64MiB" : "capacity=736KiB")
                                             : "capacity=736KiB;granularity=4KiB;bandwidth=4GB/s";
    if (has_contents(setting))
        settings.options += ";staging_piece=16KiB;poison=1";
    else
        settings.staging_bytes = 0;
    return settings;
}

inline std::vector<BlockSpec> specs(uint64_t seed, bool contents) {
    std::vector<BlockSpec> specs;
    for (size_t i = 0; i < kBlocks; i++) {
        const Origin origin = contents && (i + seed) % 3 == 1   ? Origin::pageable
                              : contents && (i + seed) % 5 == 3 ? Origin::fill
                                                                : Origin::pinned;
        specs.push_back({(1 + (i * 3 + seed) % 4) * kPage - (i + seed) % 3, origin, 0});
        if (i >= kOrdered) specs[i].flags = SH_BLOCK_UNORDERED;
    }
    specs[6].flags = SH_BLOCK_WHOLE;
    specs[2].bytes = 300;  // these two share a page
    specs[3].bytes = 1000;
    if (contents) specs[kMutable] = {2 * kPage, Origin::pageable, SH_BLOCK_MUTABLE};
    return specs;
}

// A place for a runtime, which is destroyed and created again.
struct Party {
    std::string name;
    std::shared_mutex life;  // only the destroying thread takes it alone, and only by try_lock()
    std::mutex stepping;
    std::unique_ptr<Model> model;
    uint64_t generation = 0;
    std::mutex ordering;
    std::atomic<bool> all_ordered{false};  // the latest order has all blocks that may be in one
    std::atomic<uint64_t> orders{0};       // so far: another may need more beside what is protected
    std::atomic<uint64_t> plans{0};        // before the latest order
    std::atomic<uint64_t> in_part{0};      // changes after which less was protected than it asked for
    std::atomic<uint64_t> pressed{0};
    uint64_t version = 0;  // of the mutable block; only the thread in the step uses it
};

inline void note_pressure(sh_runtime*, uint64_t bytes, void* data) {
    EXPECT_GT(bytes, 0u);
    static_cast<Party*>(data)->pressed++;
}

// The parties, the device, and everything that the threads share.
class Stage {
public:
    explicit Stage(const Setting& setting)
        : setting_(setting),
          device_(settings_of(setting)),
          contents_(has_contents(setting)),
          model_(settings_of(setting).budget_bytes / kPage) {
        SUCCEEDS_(api::find_device(device_.get(), &core_).code());
        core_->arbiter().set_journal([this](const Arbiter::Entry& entry, auto standings, const auto& figures) {
            note_protection(entry, standings);
            log_.append(entry, standings, figures);
        });
        follower_ = std::thread([this] { follow(); });
        watcher_ = std::thread([this] { watch(); });
        for (size_t p = 0; p < kRuntimes; p++) {
            parties[p].name = "p" + std::to_string(p);
            create(parties[p]);
        }
    }

    ~Stage() {
        finish();
        core_.reset();
    }

    // Nothing is checked after this.
    void finish() {
        if (!follower_.joinable()) return;
        done_ = true;
        watcher_.join();
        core_->arbiter().set_journal({});
        log_.end();
        follower_.join();
    }

    static bool has_ceiling(const Party& party) { return party.generation % 4 == 3; }

    void create(Party& party) {
        party.generation++;
        party.version = 0;
        party.all_ordered = party.generation % 3 != 0;
        party.plans = 0;
        party.model = std::make_unique<Model>(
            device_,
            specs(setting_.seed + party.generation + static_cast<uint64_t>(&party - parties.data()), contents_),
            RuntimeSettings{
                .name = party.name.c_str(), .max_bytes = has_ceiling(party) ? 20 * kPage : 0, .max_held = 2});
        if (party.all_ordered) {
            EXPECT_SUCCEEDS(party.model->schedule(forward(kOrdered), 500));
        }
        EXPECT_SUCCEEDS(sh_set_pressure(party.model->runtime(), note_pressure, &party));
    }

    TestDevice& device() { return device_; }
    bool contents() const { return contents_; }
    bool failed() const { return failed_ || testing::Test::HasFailure(); }
    const ResidencyModel& model() const { return model_; }

    // Returns the last entries that the model has followed: all of them, or those of one runtime.
    std::string last_entries(const Party* of = nullptr) {
        std::string text;
        std::lock_guard lock(last_mutex_);
        size_t shown = 0;
        for (auto entry = last_.rbegin(); entry != last_.rend() && shown < kShown; ++entry) {
            if (of && entry->first != of) continue;
            text = "  " + entry->second + "\n" + text;
            shown++;
        }
        return "the last entries (share/granted, kept, reserved, guest of each):\n" + text;
    }
    // Entries so far.
    uint64_t entries() { return log_.count(); }

    // Only one change runs at a time, so that the watcher knows when a budget is in force.
    sh_status set_budget(uint64_t pages) {
        std::lock_guard lock(budget_mutex_);
        budget_changes_++;
        const sh_status status = sh_device_set_budget(device_.get(), pages * kPage);
        budget_changes_++;
        return status;
    }

    std::array<Party, kRuntimes> parties;
    std::mutex scopes_mutex;
    std::vector<sh_scope*> scopes;
    std::atomic<uint64_t> operations{0};

private:
    static void SUCCEEDS_(sh_status status) {
        if (status != SH_OK) throw std::runtime_error("device: " + why());
    }

    void note_protection(const Arbiter::Entry& entry, std::span<const Arbiter::Standing> standings) {
        if (entry.change == Arbiter::Change::join) {
            wanted_[entry.tenant] = {party_named(entry.tenant->tenant_name()), 0};
        } else if (entry.change == Arbiter::Change::leave) {
            wanted_.erase(entry.tenant);
        } else if (entry.change == Arbiter::Change::keep) {
            wanted_[entry.tenant].pages = entry.pages;
        } else if (entry.change == Arbiter::Change::settle) {
            wanted_[entry.tenant].pages = entry.holding->kept_pages;
        } else if (entry.change == Arbiter::Change::withdraw) {
            wanted_[entry.tenant].pages = 0;
        }
        for (const Arbiter::Standing& standing : standings)
            if (const Wanted& wanted = wanted_[standing.tenant]; standing.kept < wanted.pages && wanted.party)
                wanted.party->in_part++;
    }

    Party* party_named(const std::string& text) {
        for (Party& party : parties)
            if (text.find("\"" + party.name + "\"") != std::string::npos) return &party;
        return nullptr;
    }

    void follow() {
        for (;;) {
            const std::deque<Record> records = log_.take();
            if (records.empty()) return;
            for (const Record& record : records) {
                if (failed_) continue;
                {
                    std::lock_guard lock(last_mutex_);
                    if (!record.name.empty()) owners_[record.tenant] = party_named(record.name);
                    last_.emplace_back(owners_[record.tenant], text_of(record));
                    if (last_.size() > kRuntimes * kShown) last_.pop_front();
                }
                const std::string before = model_.describe();
                const std::string wrong = model_.follow(record);
                if (wrong.empty()) continue;
                failed_ = true;
                std::string text = "device " + std::string(setting_.device) + ", seed " +
                                   std::to_string(setting_.seed) + ": " + wrong + "\nthe model before:\n" + before +
                                   "the model after:\n" + model_.describe() + last_entries();
                ADD_FAILURE() << text;
            }
        }
    }

    // Used memory is never more than the budget. Memory beyond a lowered budget only shrinks.
    void watch() {
        uint64_t epoch = UINT64_MAX, before = 0;
        while (!done_) {
            const uint64_t began = budget_changes_;
            const sh_memory_info memory = device_.memory();
            const bool steady = began % 2 == 0 && budget_changes_ == began;
            EXPECT_LE(memory.peak_bytes, kMostPages * kPage);
            if (steady && memory.used_bytes > memory.budget_bytes && epoch == began) {
                EXPECT_LE(memory.used_bytes, before) << "grows beyond the budget of " << memory.budget_bytes;
            }
            EXPECT_LE(memory.headroom_bytes, kMostPages * kPage);
            EXPECT_LE(memory.reserved_bytes, kMostPages * kPage);
            epoch = steady ? began : UINT64_MAX;
            before = std::max(memory.used_bytes, memory.budget_bytes);
            std::this_thread::sleep_for(std::chrono::microseconds(500));
        }
    }

    struct Wanted {
        Party* party = nullptr;
        uint64_t pages = 0;
    };

    const Setting setting_;
    TestDevice device_;
    const bool contents_;
    std::shared_ptr<core::Device> core_;
    ResidencyModel model_;
    ResidencyLog log_;
    std::map<const core::Tenant*, Wanted> wanted_;  // under the arbiter's lock
    std::mutex budget_mutex_;
    std::atomic<uint64_t> budget_changes_{0};
    std::mutex last_mutex_;
    std::deque<std::pair<const Party*, std::string>> last_;
    std::map<const core::Tenant*, const Party*> owners_;  // of whom the follower has heard
    std::atomic<bool> failed_{false}, done_{false};
    std::thread follower_, watcher_;
};

}  // namespace stagehand::test
