// Sixteen threads do whatever engines may do with eight runtimes on one device: protect, reserve, let guests in, trim, run steps, change
// the budget, come and go. Each change that the arbiter makes is numbered under its lock; a plain model follows the log and says what
// every status, share and figure must be. Meanwhile bytes are compared, and what is protected and the budget are watched from outside.
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
namespace {

constexpr size_t kRuntimes = 8;
constexpr size_t kThreads = 16;
constexpr size_t kOrdered = 9;
constexpr size_t kUnordered = 3;
constexpr size_t kBlocks = kOrdered + kUnordered;
constexpr size_t kMutable = 4;          // changed by whoever runs the step
constexpr size_t kNeverProtected = 0;
constexpr uint64_t kLeastPages = 80, kMostPages = 180;
constexpr size_t kScopes = 6;           // open at once, in all
constexpr size_t kShown = 20;
constexpr uint64_t kRounds = 5;     // of many threads, between which all are at rest

struct Setting {
    const char* device;
    uint64_t seed;
    uint64_t operations;
};

bool has_contents(const Setting& setting) { return std::string(setting.device) == "host"; }

DeviceSettings settings_of(const Setting& setting) {
    DeviceSettings settings{.name = setting.device, .budget_bytes = 140 * kPage};
    // Little more memory than the largest budget, so that what others leave of it counts too. Not where memory must be in one piece.
    settings.options = has_contents(setting) ? (plain_devices() ? "capacity=64MiB" : "capacity=736KiB") : "capacity=736KiB;granularity=4KiB;bandwidth=4GB/s";
    if (has_contents(setting)) settings.options += ";staging_piece=16KiB;poison=1";
    else settings.staging_bytes = 0;
    return settings;
}

std::vector<BlockSpec> specs(uint64_t seed, bool contents) {
    std::vector<BlockSpec> specs;
    for (size_t i = 0; i < kBlocks; i++) {
        const Origin origin = contents && (i + seed) % 3 == 1 ? Origin::pageable : contents && (i + seed) % 5 == 3 ? Origin::fill : Origin::pinned;
        specs.push_back({(1 + (i * 3 + seed) % 4) * kPage - (i + seed) % 3, origin, 0});
        if (i >= kOrdered) specs[i].flags = SH_BLOCK_UNORDERED;
    }
    specs[6].flags = SH_BLOCK_WHOLE;
    specs[2].bytes = 300;   // these two share a page
    specs[3].bytes = 1000;
    if (contents) specs[kMutable] = {2 * kPage, Origin::pageable, SH_BLOCK_MUTABLE};
    return specs;
}

// A place for a runtime, which is destroyed and created again.
struct Party {
    std::string name;
    std::shared_mutex life;      // alone: only who destroys it, and that only tries
    std::mutex stepping;
    std::unique_ptr<Model> model;
    uint64_t generation = 0;
    std::mutex ordering;
    std::atomic<bool> all_ordered{false}; // the latest order has all blocks that may be in one
    std::atomic<uint64_t> orders{0};      // so far: another may need more beside what is protected
    std::atomic<uint64_t> plans{0};       // before the latest order
    std::atomic<uint64_t> in_part{0};     // changes after which less was protected than it asked for
    std::atomic<uint64_t> pressed{0};
    uint64_t version = 0;                 // of the mutable block; of whoever runs the step
};

void note_pressure(sh_runtime*, uint64_t bytes, void* data) {
    EXPECT_GT(bytes, 0u);
    static_cast<Party*>(data)->pressed++;
}

// The parties, the device, and what all threads share.
class Stage {
public:
    explicit Stage(const Setting& setting) : setting_(setting), device_(settings_of(setting)), contents_(has_contents(setting)), model_(settings_of(setting).budget_bytes / kPage) {
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

    // After it nothing is looked at any more.
    void finish() {
        if (!follower_.joinable()) return;
        done_ = true;
        watcher_.join();
        core_->arbiter().set_journal({});
        log_.end();
        follower_.join();
    }

    void create(Party& party) {
        sh_runtime_options options = SH_RUNTIME_OPTIONS_INIT;
        options.max_held = 2;
        options.name = party.name.c_str();
        party.generation++;
        party.version = 0;
        party.all_ordered = party.generation % 3 != 0;
        party.plans = 0;
        if (party.generation % 4 == 3) options.max_bytes = 20 * kPage;
        party.model = std::make_unique<Model>(device_, specs(setting_.seed + party.generation + static_cast<uint64_t>(&party - parties.data()), contents_), options);
        if (party.all_ordered) {
            EXPECT_SUCCEEDS(party.model->schedule(forward(kOrdered), 500));
        }
        EXPECT_SUCCEEDS(sh_set_pressure(party.model->runtime(), note_pressure, &party));
    }

    TestDevice& device() { return device_; }
    bool contents() const { return contents_; }
    bool failed() const { return failed_ || testing::Test::HasFailure(); }
    const ResidencyModel& model() const { return model_; }

    // That the model has followed: all, or those of one runtime.
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

    // One at a time, so that the watcher can tell when a budget is in force.
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
            if (const Wanted& wanted = wanted_[standing.tenant]; standing.kept < wanted.pages && wanted.party) wanted.party->in_part++;
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
                std::string text = "device " + std::string(setting_.device) + ", seed " + std::to_string(setting_.seed) + ": " + wrong + "\nthe model before:\n" + before +
                                   "the model after:\n" + model_.describe() + last_entries();
                ADD_FAILURE() << text;
            }
        }
    }

    // Memory in use is never more than the budget; beyond a lowered one it only shrinks.
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
    std::map<const core::Tenant*, Wanted> wanted_;   // under the arbiter's lock
    std::mutex budget_mutex_;
    std::atomic<uint64_t> budget_changes_{0};
    std::mutex last_mutex_;
    std::deque<std::pair<const Party*, std::string>> last_;
    std::map<const core::Tenant*, const Party*> owners_;   // of whom the follower has heard
    std::atomic<bool> failed_{false}, done_{false};
    std::thread follower_, watcher_;
};

class Worker {
public:
    Worker(Stage& stage, uint64_t seed) : stage_(stage), random_(seed), text_("seed " + std::to_string(seed)) {}
    ~Worker() {
        while (step_) go_on_in_step();
        while (!protections_.empty()) {
            std::shared_lock life(protections_.back().party->life);
            unprotect(protections_.size() - 1);
        }
    }

    void operate() {
        stage_.operations++;
        if (step_ && pick(3)) return go_on_in_step();
        Party& party = stage_.parties[pick(kRuntimes)];
        const size_t what = pick(200);
        if (what == 0) return replace(party);
        if (what < 3) return budget();
        if (what < 20) return end_scope();
        std::shared_lock life(party.life, std::defer_lock);
        if (&party != step_) life.lock();   // waits only while it is replaced
        if (what < 26) return protect(party);
        if (what < 42) return unprotect(party);
        if (what < 48) return keep_resident(party);
        if (what < 60) return reserve(party);
        if (what < 68) return release_reservation(party);
        if (what < 76) return guest(party);
        if (what < 80) return trim(party);
        if (what < 82) return schedule(party);
        if (what < 110) return inspect(party);
        if (what < 112) return allow(sh_runtime_synchronize(party.model->runtime()), {}, "synchronize");
        if (what < 150) return use(party);
        return begin_step(party, std::move(life));
    }

private:
    // A block that this thread protects, and what it had then.
    struct Protection {
        Party* party;
        uint64_t generation;
        size_t block;
        uint64_t resident, present;
        bool all_ordered;
        uint64_t orders, in_part;
        uint64_t entry;   // of the log
    };

    size_t pick(size_t count) { return std::uniform_int_distribution<size_t>(0, count - 1)(random_); }

    void allow(sh_status status, std::initializer_list<sh_status> also, const char* what) {
        if (status == SH_OK || std::find(also.begin(), also.end(), status) != also.end()) return;
        ADD_FAILURE() << text_ << ": " << what << ": " << sh_status_string(status) << ": " << why();
    }

    // A runtime of the device to call through, and the target, by its handle or as NULL.
    std::pair<sh_runtime*, sh_runtime*> through(Party& party) {
        sh_runtime* const target = party.model->runtime();
        if (pick(3) == 0) return {target, nullptr};
        if (pick(2)) return {target, target};
        Party& other = stage_.parties[pick(kRuntimes)];
        if (&other == &party || &other == step_) return {target, target};
        through_ = std::shared_lock(other.life, std::try_to_lock);
        return {through_ ? other.model->runtime() : target, target};
    }

    void use(Party& party) {
        const size_t i = pick(kBlocks);
        if (i == kMutable) return;
        use(party, i);
    }

    void use(Party& party, size_t i) {
        const uint32_t flags = pick(8) ? 0 : SH_ACQUIRE_NO_WAIT;
        sh_status status;
        if (stage_.contents()) {
            status = party.model->use(i, SH_STREAM_HOST, flags);
        } else {
            sh_view view = SH_VIEW_INIT;
            status = sh_acquire(party.model->runtime(), party.model->id(i), SH_STREAM_HOST, flags, &view);
            if (status == SH_OK) allow(sh_release(party.model->runtime(), party.model->id(i), SH_STREAM_HOST), {}, "release");
        }
        allow(status, {SH_NOT_READY, SH_ERROR_HELD, SH_ERROR_BUSY, SH_ERROR_BUDGET}, "use");
    }

    void change(Party& party) {
        sh_view view = SH_VIEW_INIT;
        const sh_status status = sh_acquire(party.model->runtime(), party.model->id(kMutable), SH_STREAM_HOST, 0, &view);
        allow(status, {SH_ERROR_HELD, SH_ERROR_BUSY, SH_ERROR_BUDGET}, "acquire to change");
        if (status != SH_OK) return;
        allow(party.model->compare(kMutable, view, SH_STREAM_HOST), {}, "compare");
        allow(party.model->overwrite(kMutable, view, ++party.version), {}, "overwrite");
        allow(sh_release(party.model->runtime(), party.model->id(kMutable), SH_STREAM_HOST), {}, "release");
    }

    void begin_step(Party& party, std::shared_lock<std::shared_mutex> life) {
        if (step_) return use(party);
        std::unique_lock stepping(party.stepping, std::try_to_lock);
        if (!stepping) return;
        const sh_status status = sh_step_begin(party.model->runtime());
        allow(status, {SH_ERROR_BUDGET, SH_ERROR_BUSY}, "step_begin");
        if (status != SH_OK) return;
        step_ = &party;
        stepping_ = std::move(stepping);
        step_life_ = std::move(life);
        uses_ = pick(8);
    }

    void go_on_in_step() {
        if (uses_ > 0) {
            uses_--;
            if (stage_.contents() && pick(4) == 0) return change(*step_);
            return use(*step_);
        }
        allow(sh_step_end(step_->model->runtime()), {}, "step_end");
        step_ = nullptr;
        stepping_.unlock();
        step_life_.unlock();
    }

    void protect(Party& party) {
        std::vector<sh_block> ids;
        std::vector<size_t> blocks;
        for (size_t n = 1 + pick(3); n > 0; n--) {
            blocks.push_back(1 + pick(kBlocks - 1));
            ids.push_back(party.model->id(blocks.back()));
        }
        allow(sh_protect_blocks(party.model->runtime(), ids.data(), ids.size()), {}, "protect");
        for (const size_t block : blocks) {
            Protection protection{&party, party.generation, block, 0, 0, false, 0, 0, 0};
            measure(protection);
            protections_.push_back(protection);
        }
    }

    void measure(Protection& protection) {
        protection.orders = protection.party->orders;
        protection.in_part = protection.party->in_part;
        protection.all_ordered = protection.party->all_ordered && protection.party->model->stats().plans > protection.party->plans;
        const sh_block_state state = protection.party->model->state(protection.block);
        protection.resident = state.resident_bytes;
        protection.present = state.present_bytes;
        protection.entry = stage_.entries();
    }

    // What a protected block has on the device stays there.
    void check(Protection& protection) {
        Protection now = protection;
        measure(now);
        now.orders = protection.party->orders;
        now.in_part = protection.party->in_part;
        const bool less = now.resident < protection.resident || (now.block >= kOrdered && now.present < protection.present);
        if (less && protection.all_ordered && now.orders == protection.orders && now.in_part == protection.in_part)
            ADD_FAILURE() << text_ << ": protected block " << now.block << " of " << now.party->name << " had " << protection.resident << " bytes resident and "
                          << protection.present << " present, and has " << now.resident << " and " << now.present << ", entries "
                          << protection.entry << " to " << now.entry << "\n" << stage_.last_entries(protection.party);
        measure(protection);
    }

    void unprotect(Party& party) {
        if (pick(4) == 0) {   // what nobody protects
            const sh_block ids[] = {party.model->id(1), party.model->id(kNeverProtected)};
            EXPECT_EQ(sh_unprotect_blocks(party.model->runtime(), ids + 1, 1), SH_ERROR_INVALID_STATE);
            EXPECT_EQ(sh_unprotect_blocks(party.model->runtime(), ids, 2), SH_ERROR_INVALID_STATE);
            return;
        }
        for (size_t k = protections_.size(); k-- > 0;)
            if (protections_[k].party == &party) unprotect(k);
    }

    void unprotect(size_t k) {
        Protection protection = protections_[k];
        protections_.erase(protections_.begin() + static_cast<ptrdiff_t>(k));
        if (protection.generation != protection.party->generation) return;   // it went with its runtime
        check(protection);
        const sh_block id = protection.party->model->id(protection.block);
        allow(sh_unprotect_blocks(protection.party->model->runtime(), &id, 1), {}, "unprotect");
    }


    void open(sh_scope* scope) {
        std::lock_guard lock(stage_.scopes_mutex);
        stage_.scopes.push_back(scope);
    }
    bool may_open() {
        std::lock_guard lock(stage_.scopes_mutex);
        return stage_.scopes.size() < kScopes;
    }

    void keep_resident(Party& party) {
        if (!may_open()) return;
        sh_scope* scope = nullptr;
        const auto [runtime, target] = through(party);
        allow(sh_keep_resident(runtime, target, &scope), {}, "keep_resident");
        if (through_) through_.unlock();
        if (scope) open(scope);
    }

    // On any thread, in any order, also after the runtime is gone.
    void end_scope() {
        sh_scope* scope = nullptr;
        {
            std::lock_guard lock(stage_.scopes_mutex);
            if (stage_.scopes.empty()) return;
            std::swap(stage_.scopes[pick(stage_.scopes.size())], stage_.scopes.back());
            scope = stage_.scopes.back();
            stage_.scopes.pop_back();
        }
        allow(sh_scope_end(scope), {}, "scope_end");
        EXPECT_EQ(sh_scope_end(scope), SH_ERROR_INVALID_HANDLE) << text_;
    }

    void reserve(Party& party) {
        const uint64_t sizes[] = {0, 0, pick(40) * kPage, pick(40 * kPage), pick(12) * kPage, (kMostPages + 1 + pick(100)) * kPage};
        const uint64_t bytes = sizes[pick(std::size(sizes))];
        const uint32_t priority = pick(2) ? SH_PRIORITY_PRIMARY : SH_PRIORITY_SECONDARY;
        const auto [runtime, target] = through(party);
        const sh_status status = sh_reserve(runtime, target, bytes, priority);
        if (through_) through_.unlock();
        if (bytes > kMostPages * kPage) {
            EXPECT_EQ(status, SH_ERROR_BUDGET) << text_;
        } else if (bytes) {
            allow(status, {SH_ERROR_BUDGET}, "reserve");
        } else {
            allow(status, {SH_ERROR_BUDGET, SH_ERROR_BUSY, SH_ERROR_INVALID_STATE}, "reserve its plan");
        }
    }

    void release_reservation(Party& party) {
        const auto [runtime, target] = through(party);
        allow(sh_release_reservation(runtime, target), {}, "release_reservation");
        if (through_) through_.unlock();
    }

    void guest(Party& party) {
        if (!may_open() || &party == step_) return;
        Party& host = stage_.parties[pick(kRuntimes)];
        sh_guest_options options = SH_GUEST_OPTIONS_INIT;
        options.flags = pick(2) ? SH_GUEST_SHRINK : 0;
        options.bytes = pick(3) ? 1 + pick(30 * kPage) : 0;
        options.workspace_bytes = pick(2) ? pick(20 * kPage) : 0;
        sh_scope* scope = nullptr;
        if (&host == &party) {
            EXPECT_EQ(sh_guest_begin(host.model->runtime(), party.model->runtime(), &options, &scope), SH_ERROR_INVALID_ARGUMENT);
            return;
        }
        std::shared_lock life(host.life, std::defer_lock);
        if (&host != step_ && !life.try_lock()) return;
        const sh_status status = sh_guest_begin(host.model->runtime(), party.model->runtime(), &options, &scope);
        allow(status, {SH_ERROR_BUDGET, SH_ERROR_BUSY}, "guest_begin");
        if (status == SH_OK) open(scope);
    }

    void trim(Party& party) {
        const uint64_t keep = pick(3) ? pick(40) * kPage : 0;
        uint64_t left = 0;
        const sh_status status = sh_trim(party.model->runtime(), keep, &left);
        allow(status, {SH_ERROR_BUSY}, "trim");
    }

    void budget() { allow(stage_.set_budget(kLeastPages + pick(kMostPages - kLeastPages + 1)), {SH_ERROR_BUDGET}, "set_budget"); }

    void schedule(Party& party) {
        std::vector<size_t> order = pick(2) ? forward(kOrdered) : forward_backward(kOrdered);
        if (pick(2)) std::shuffle(order.begin(), order.end(), random_);
        std::lock_guard ordering(party.ordering);
        const bool all = pick(16) > 0;
        if (!all) order = forward(kOrdered / 2 + pick(kOrdered / 2));
        party.all_ordered = false;
        party.orders++;
        allow(party.model->schedule(order, pick(4) * 700), {}, "set_schedule");
        party.plans = party.model->stats().plans;
        party.all_ordered = all;
    }

    void inspect(Party& party) {
        for (Protection& protection : protections_)
            if (protection.party == &party && protection.generation == party.generation && pick(2)) return check(protection);
        if (pick(2)) {
            const sh_block_state state = party.model->state(pick(kBlocks));
            EXPECT_LE(state.present_bytes, state.bytes);
            EXPECT_LE(state.resident_bytes + state.streamed_bytes, state.bytes);
            return;
        }
        const sh_runtime_stats stats = party.model->stats();
        EXPECT_EQ(stats.lost, 0u);
        EXPECT_GE(stats.share_bytes, stats.reserved_bytes) << text_;
        EXPECT_GE(stats.share_bytes, stats.guest_bytes) << text_;
        EXPECT_GE(stats.share_bytes, stats.protected_bytes) << text_;
    }

    void replace(Party& party) {
        if (&party == step_) return;
        std::unique_lock life(party.life, std::try_to_lock);
        if (!life) return;
        EXPECT_EQ(party.model->wrong_uses(), 0u) << text_ << ": " << party.model->first_wrong();
        sh_runtime* const old = party.model->runtime();
        party.model.reset();
        EXPECT_EQ(sh_trim(old, 0, nullptr), SH_ERROR_INVALID_HANDLE);
        stage_.create(party);
    }

    Stage& stage_;
    std::mt19937_64 random_;
    const std::string text_;
    std::vector<Protection> protections_;
    std::shared_lock<std::shared_mutex> through_;
    Party* step_ = nullptr;   // in which this thread is
    std::unique_lock<std::mutex> stepping_;
    std::shared_lock<std::shared_mutex> step_life_;
    size_t uses_ = 0;
};

class Residency : public testing::TestWithParam<Setting> {};

void operate(Stage& stage, uint64_t seed, uint64_t each) {
    std::vector<std::thread> threads;
    for (size_t t = 0; t < kThreads; t++)
        threads.emplace_back([&, t] {
            Worker worker(stage, seed + t);
            for (uint64_t k = 0; k < each && !stage.failed(); k++) worker.operate();
        });
    for (std::thread& thread : threads) thread.join();
}

// Nobody is in a step or holds a view: nothing has to wait.
void check_at_rest(Stage& stage) {
    const sh_memory_info before = stage.device().memory();
    EXPECT_SUCCEEDS(stage.set_budget(before.budget_bytes / kPage));
    EXPECT_LE(stage.device().memory().used_bytes, before.budget_bytes);
    for (const host::MemoryStatistics& host : host::all_memory_statistics()) EXPECT_LE(host.peak_bytes, kMostPages * kPage);
    for (Party& party : stage.parties) EXPECT_EQ(party.model->wrong_uses(), 0u) << party.name << ": " << party.model->first_wrong();
}

// All is given back, and the whole budget is there again.
void check_at_the_end(Stage& stage) {
    for (sh_scope* scope : stage.scopes) EXPECT_SUCCEEDS(sh_scope_end(scope));
    for (Party& party : stage.parties) EXPECT_SUCCEEDS(sh_release_reservation(party.model->runtime(), nullptr));
    const sh_memory_info memory = stage.device().memory();
    EXPECT_EQ(memory.reserved_bytes, 0u);
    EXPECT_EQ(memory.guest_bytes, 0u);
    EXPECT_EQ(memory.protected_bytes, 0u);
    EXPECT_SUCCEEDS(stage.set_budget(kMostPages));
    for (Party& party : stage.parties) {
        EXPECT_SUCCEEDS(party.model->schedule(forward(kOrdered)));
        EXPECT_SUCCEEDS(sh_step_begin(party.model->runtime()));
        EXPECT_SUCCEEDS(sh_step_end(party.model->runtime()));
    }
    for (Party& party : stage.parties) party.model.reset();
    EXPECT_EQ(stage.device().memory().used_bytes, 0u);
    // All of the budget that is there: growth leaves a reserve on the device.
    EXPECT_LE(stage.device().memory().headroom_bytes, stage.device().memory().budget_bytes);
    EXPECT_GE(stage.device().memory().headroom_bytes, stage.device().memory().budget_bytes / 16 * 15);
}

// A run that never came to these proves nothing about them.
void check_counts(const ResidencyModel::Counts& counts) {
    const std::pair<const char*, uint64_t> all[] = {{"records", counts.records}, {"refused_asks", counts.refused_asks}, {"short_grants", counts.short_grants},
        {"refused_grants", counts.refused_grants}, {"primary", counts.primary}, {"secondary", counts.secondary}, {"refused_reservations", counts.refused_reservations},
        {"gave_way", counts.gave_way}, {"guests", counts.guests}, {"shrunk_guests", counts.shrunk_guests}, {"refused_guests", counts.refused_guests},
        {"workspaces", counts.workspaces}, {"lowered", counts.lowered}, {"raised", counts.raised}, {"refused_totals", counts.refused_totals}, {"kept", counts.kept},
        {"kept_in_part", counts.kept_in_part}, {"over_the_budget", counts.over_the_budget}, {"redivided_by_use", counts.redivided_by_use},
        {"gave_up_under_reservation", counts.gave_up_under_reservation}};
    for (const auto& [name, count] : all) {
        testing::Test::RecordProperty(name, std::to_string(count));
        if (scaled(100) >= 100) {
            EXPECT_GT(count, 0u) << name;
        }
    }
}

TEST_P(Residency, is_what_the_words_say) {
    const Setting setting = GetParam();
    {
        Stage stage(setting);
        for (uint64_t round = 0; round < kRounds && !stage.failed(); round++) {
            operate(stage, (setting.seed * kRounds + round) * kThreads, scaled(setting.operations) / kThreads / kRounds + 1);
            check_at_rest(stage);
        }
        check_at_the_end(stage);
        stage.finish();
        if (!stage.failed()) check_counts(stage.model().counts());
    }
    EXPECT_TRUE(host::all_memory_statistics().empty());
}

// A million operations in all.
INSTANTIATE_TEST_SUITE_P(Devices, Residency, testing::Values(Setting{"host", 1, 100'000}, Setting{"sim", 2, 900'000}),
                         [](const auto& info) { return std::string(info.param.device); });

}  // namespace
}  // namespace stagehand::test
