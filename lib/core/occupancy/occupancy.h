// Occupancy: the memory of sh_alloc() on one device, by tags, and its way to host memory and back.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include <stagehand/occupancy.h>

#include "base/status.h"
#include "core/device/device.h"
#include "core/occupancy/allocations.h"
#include "core/occupancy/call_times.h"
#include "core/occupancy/callbacks.h"
#include "core/occupancy/content_memory.h"
#include "core/occupancy/passage.h"
#include "core/occupancy/tags.h"
#include "core/occupancy/wishes.h"

namespace stagehand::core {

// Thread-safe. The methods are the calls of occupancy.h.
class Occupancy {
public:
    explicit Occupancy(std::shared_ptr<Device> device);
    // Waits for the work on the device, and frees everything.
    ~Occupancy();
    Occupancy(const Occupancy&) = delete;
    Occupancy& operator=(const Occupancy&) = delete;

    Status alloc(uint64_t bytes, const std::string& tag, Keeping keeping, uint64_t* out_address);
    Status free(uint64_t address);
    Status pause(const TagSelection& tags, PauseWishes wishes, sh_occupancy_change* out);
    Status resume(const TagSelection& tags, sh_occupancy_change* out);
    Status trim(uint64_t* out_bytes);
    // Begins to pin the host memory that a pause with these arguments needs.
    Status prepare(const TagSelection& tags, PauseWishes wishes);
    // Writes contents that are away.
    Status read(uint64_t address, uint64_t bytes, void* out);
    Status add_callbacks(const OccupancyCallbacks& callbacks, uint64_t* out_id);
    Status remove_callbacks(uint64_t id);
    // These never wait for one of the calls above.
    Status info(const char* tag, sh_occupancy_info* out) const { return tags_.info(tag, out); }
    std::vector<sh_occupancy_info> list() const { return tags_.list(); }

private:
    // Held by the one call that may change something.
    class Turn {
    public:
        ~Turn();
        Status take(Occupancy& of, bool no_wait);

    private:
        Occupancy* of_ = nullptr;
    };
    // What a pause does and finds out.
    struct Release {
        const PauseWishes& wishes;
        CallTimes times;
        uint64_t unchanged_bytes = 0, runtime_bytes = 0;
        bool released = false;
    };

    void find_unused(PauseWishes* wishes) const;
    Status can_pause() const;
    Status release_all(const ChosenTags& chosen, Release* release);
    Status release(const std::vector<Extent*>& extents, Release* release);
    static Status lose(const std::vector<Extent*>& extents);
    Status bring_back(const ChosenTags& chosen, uint64_t* out_runtime_bytes);
    void tell(bool resumes, const std::vector<const char*>& tags, uint64_t began, const Carried& before,
              const CallTimes& times, sh_occupancy_change* out) const;

    std::shared_ptr<Device> device_;
    std::mutex working_;
    std::atomic<std::thread::id> worker_{};  // that has its turn
    Tags tags_;
    Passage passage_;
    ContentMemory memory_;
    Allocations allocations_;
    CallbackList callbacks_;
};

}  // namespace stagehand::core
