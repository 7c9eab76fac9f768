// Pausables: what leaves a device in a pause beside the memory of sh_alloc(): the runtimes. They join and leave here.
#pragma once

#include <cstdint>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include <stagehand/occupancy.h>

#include "base/status.h"

namespace stagehand::core {

// The tag of a runtime. Such names are not for memory of sh_alloc().
constexpr std::string_view kRuntimeTagPrefix = "runtime:";
inline bool is_runtime_tag(std::string_view tag) { return tag.starts_with(kRuntimeTagPrefix); }
// Cut to the size of a tag, between characters of UTF-8.
std::string runtime_tag_of(const std::string& runtime_name);

// A runtime, as a pause sees it. Any thread may call the methods, and holds no lock of a runtime.
class Pausable {
public:
    struct Figures {
        uint32_t state = SH_OCCUPANCY_RUNNING;
        uint64_t blocks = 0;
        uint64_t bytes = 0;         // of all blocks
        uint64_t device_bytes = 0;  // that are held
        uint64_t cycles = 0;
    };

    virtual ~Pausable() = default;
    // The tag that a pause knows it by. Several may have the same one. It never changes.
    virtual const std::string& pause_tag() const = 0;
    // Never waits.
    virtual Figures pause_figures() const = 0;
    // Gives all device memory back, after everything that uses it. What is newer than its source goes there first.
    // Returns SH_ERROR_BUSY while the engine uses the memory, or SH_ERROR_INVALID_STATE if the calling thread alone
    // does so. On failure it goes on as before.
    virtual Status release_memory() = 0;
    // Takes memory again, which run() lets the engine use, and release_memory() gives back. On failure it stays
    // released.
    virtual Status take_memory() = 0;
    virtual void run() noexcept = 0;
};

// Thread-safe.
class Pausables {
public:
    void join(Pausable& one);
    // Returns when no other thread is about to call it.
    void leave(Pausable& one) noexcept;

    // Calls `visit` for each. It must not wait for anything.
    template <class Visit>
    void each(Visit&& visit) const {
        const std::lock_guard lock(mutex_);
        for (Pausable* const one : all_) visit(*one);
    }

    // While this object lives, none leaves.
    class Session {
    public:
        explicit Session(Pausables& of) : calling_(of.calling_) {}

    private:
        std::lock_guard<std::mutex> calling_;
    };

private:
    std::mutex calling_;  // taken before mutex_
    mutable std::mutex mutex_;
    std::vector<Pausable*> all_;
};

}  // namespace stagehand::core
