// The reference of the contents' stress test. For each block it holds the bytes that a view must show now. The source
// must hold these bytes after a write-back. The locks ensure only what a real engine has to ensure: no thread changes a
// block that another thread uses.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "contents_journal.h"
#include "contents_source.h"
#include "contents_stamp.h"
#include "engine.h"

namespace stagehand::test {

// The device of a round, and what the round may do.
struct Setting {
    const char* name;
    const char* backend = "";   // empty: the device under test
    const char* options = "";   // in addition to the options of all tests
    uint64_t operations = 100;  // of each thread in a round
    bool faulty = false;        // calls into the device fail now and then
    bool host_only = false;     // it asks what only the host backend can do
    bool helped = false;        // another device brings a part of the bytes
};
inline void PrintTo(const Setting& setting, std::ostream* out) { *out << setting.name; }

// Says which threads use a block (several) or change it (one). No thread waits for this lock, so a thread that holds
// some of them cannot deadlock.
class UseLock {
public:
    bool try_share();
    bool try_own();
    void leave() { users_ < 0 ? users_ = 0 : users_--; }

private:
    std::atomic<int32_t> users_{0};  // -1: one thread changes the block
};

class Claim {
public:
    Claim() = default;
    static Claim to_use(UseLock& lock) { return Claim(lock.try_share() ? &lock : nullptr); }
    static Claim to_change(UseLock& lock) { return Claim(lock.try_own() ? &lock : nullptr); }
    Claim(Claim&& other) noexcept : lock_(std::exchange(other.lock_, nullptr)) {}
    Claim& operator=(Claim&& other) noexcept {
        std::swap(lock_, other.lock_);
        return *this;
    }
    ~Claim() {
        if (lock_) lock_->leave();
    }
    explicit operator bool() const { return lock_; }

private:
    explicit Claim(UseLock* lock) : lock_(lock) {}
    UseLock* lock_ = nullptr;
};

// The versions that a view may show: the newest version at the acquire. The view shows either the version before or the
// version after if the source was updated at that time.
struct Sight {
    std::vector<Version> may_be;  // the newest last; empty: not known
    uint64_t serial = 0;
    std::atomic<const Stamp*> is{nullptr};  // set when a thread has looked
};

struct ModelBlock {
    uint32_t number = 0;
    uint32_t group = 0;  // blocks that are registered by one call at first, so that small ones share units
    uint64_t bytes = 0, piece = 0;
    Kind kind = Kind::pinned;
    uint32_t flags = 0;  // SH_BLOCK_*

    bool is_mutable() const { return flags & SH_BLOCK_MUTABLE; }
    bool ordered() const { return !(flags & SH_BLOCK_UNORDERED); }

    UseLock lock;                 // held by the thread that changes the block or registers it anew
    UseLock source_lock;          // an update of the source takes it to change, others to use
    std::atomic<sh_block> id{0};  // 0 while not registered; readable without a claim
    // Only the owner of the lock changes these members.
    std::unique_ptr<BlockSource> source;
    sh_stream home = SH_STREAM_HOST;  // of a mutable block: its uses are in one order

    // Returns the newest contents. NULL if they are not known, because earlier changes were thrown away.
    Version now();
    void set(Version version);
    uint64_t changes();                            // so far
    std::vector<Version> since(uint64_t changes);  // the newest at some time since then; empty: not known

    // For a block that is changed only by its source: the same serial means the same version.
    void forget_serial();
    bool serial_fits(uint64_t serial, const Version& version);

private:
    std::mutex mutex_;
    std::vector<Version> versions_;  // the last ones
    uint64_t changes_ = 0;
    uint64_t seen_serial_ = 0;
    Version seen_;
};

class Round;

// A runtime that several threads use.
class Party {
public:
    Party(Round& round, uint32_t number, std::mt19937_64& random, uint32_t threads);

    Round& round() { return round_; }
    uint32_t number() const { return number_; }
    sh_runtime* runtime() const { return runtime_; }
    std::vector<std::unique_ptr<ModelBlock>>& blocks() { return blocks_; }
    uint32_t groups() const { return groups_; }
    const std::vector<sh_stream>& homes() const { return homes_; }
    uint64_t pages() const;  // of all blocks

    Version next_version(const ModelBlock& block);
    // Registers blocks with new sources by one call. The caller has claimed these blocks for a change. They have ids if
    // the call succeeds.
    sh_status register_blocks(const std::vector<ModelBlock*>& blocks);
    // Overwrites the source of a block that was just unregistered. The memory is kept to detect later writes, or freed
    // at once.
    void retire(ModelBlock& block, bool at_once);
    void check_retired();
    void destroy();

    // Fails the test if a view may not show these bytes. Any thread may call this.
    void compare(ModelBlock& block, const uint8_t* at, Sight& sight, const char* what);
    void check_source(ModelBlock& block, const char* when);
    void fail(uint32_t block, const std::string& text);

    std::atomic<bool> lost{false};
    std::atomic<bool> stepping{false};
    std::atomic<bool> quiet{
        false};  // a thread wants to be alone in it, because plans change only while no view is held
    std::atomic<int32_t> inside{0};  // threads that are at something
    std::atomic<uint64_t> views{0}, write_backs{0}, updates{0}, registrations{0}, refused{0}, loads{0}, plans{0},
        helped{0};

private:
    void add_group(std::mt19937_64& random, size_t count, uint64_t least, uint64_t most, uint32_t flags);

    Round& round_;
    const uint32_t number_;
    sh_runtime* runtime_ = nullptr;
    std::vector<std::unique_ptr<ModelBlock>> blocks_;
    uint32_t groups_ = 0;
    std::vector<sh_stream> homes_;
    struct Retired {
        uint32_t block = 0;
        std::unique_ptr<BlockSource> source;
        Version contents;
    };
    std::mutex retired_mutex_;
    std::vector<Retired> retired_;
};

// One device, for a while.
class Round {
public:
    Round(const Setting& setting, uint64_t seed);

    void run();

    const Setting& setting() const { return setting_; }
    uint64_t seed() const { return seed_; }
    TestDevice& device() { return *device_; }
    Journal& journal() { return *journal_; }
    uint64_t pages() const;  // of the blocks of all parties
    bool failed() const { return failures_ > 0; }
    bool note_failure() { return failures_++ < 3; }  // whether it is worth telling
    std::string where() const;                       // how to have it again
    std::string summary() const;

    std::atomic<uint32_t> versions{0};

private:
    const Setting& setting_;
    const uint64_t seed_;
    std::unique_ptr<TestDevice> helper_, device_;
    std::unique_ptr<Journal> journal_;
    std::vector<std::unique_ptr<Party>> parties_;
    std::atomic<uint32_t> failures_{0};
};

}  // namespace stagehand::test
