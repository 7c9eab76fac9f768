// The stage of the residency test: a device, eight places for runtimes, and a watcher of the budget.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <random>
#include <shared_mutex>
#include <thread>

#include "engine.h"
#include "host/host_backend.h"
#include "scale.h"

namespace stagehand::test {

inline constexpr size_t kRuntimes = 8;
inline constexpr size_t kThreads = 16;
inline constexpr size_t kOrdered = 9;
inline constexpr size_t kUnordered = 3;
inline constexpr size_t kBlocks = kOrdered + kUnordered;
inline constexpr size_t kMutable = 4;  // the thread that runs the step changes it
inline constexpr uint64_t kLeastPages = 80, kMostPages = 180;
inline constexpr size_t kScopes = 12;   // open at once, in all
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
        : setting_(setting), device_(settings_of(setting)), contents_(has_contents(setting)) {
        watcher_ = std::thread([this] { watch(); });
        for (size_t p = 0; p < kRuntimes; p++) {
            parties[p].name = "p" + std::to_string(p);
            create(parties[p]);
        }
    }

    ~Stage() {
        done_ = true;
        watcher_.join();
    }

    static bool has_ceiling(const Party& party) { return party.generation % 4 == 3; }

    void create(Party& party) {
        party.generation++;
        party.version = 0;
        party.model = std::make_unique<Model>(
            device_,
            specs(setting_.seed + party.generation + static_cast<uint64_t>(&party - parties.data()), contents_),
            RuntimeSettings{
                .name = party.name.c_str(), .max_bytes = has_ceiling(party) ? 20 * kPage : 0, .max_held = 2});
        if (party.generation % 3) {
            EXPECT_SUCCEEDS(party.model->schedule(forward(kOrdered), 500));
        }
        EXPECT_SUCCEEDS(sh_set_pressure(party.model->runtime(), note_pressure, &party));
    }

    TestDevice& device() { return device_; }
    bool contents() const { return contents_; }
    static bool failed() { return testing::Test::HasFailure(); }

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

    const Setting setting_;
    TestDevice device_;
    const bool contents_;
    std::mutex budget_mutex_;
    std::atomic<uint64_t> budget_changes_{0};
    std::atomic<bool> done_{false};
    std::thread watcher_;
};

}  // namespace stagehand::test
