// Occupancy: the memory of sh_alloc() on one device, by tags, and its way to host memory and back.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include <stagehand/occupancy.h>

#include "base/status.h"
#include "core/device/device.h"
#include "core/occupancy/accounts.h"
#include "core/occupancy/call_times.h"
#include "core/occupancy/callbacks.h"
#include "core/occupancy/comparison.h"
#include "core/occupancy/extent.h"
#include "core/occupancy/passage.h"
#include "core/occupancy/runtime_tags.h"
#include "core/occupancy/tag.h"
#include "transfer/host/host_fill.h"

namespace stagehand::core {

// Tags that a caller names.
struct TagSelection {
    std::span<const char* const> names;  // none: all
    bool repeat = false;                 // names that are in the wanted state already are left out
    bool no_wait = false;
};

// How tags are paused.
struct PauseWishes {
    std::optional<WayOut> contents;    // instead of what each allocation says
    uint32_t format = 0;               // the same: SH_FORMAT_*
    bool copy_all = false;             // contents that have not changed are copied too
    std::vector<AddressRange> unused;  // by the engine: in any order
    bool pinned = true;                // host memory that is new
    std::string folder;                // of files. Empty: the usual one, and only for what has to be in files
    uint64_t host_bytes = 0;           // of host memory for contents at most. 0: no limit

    uint32_t format_of(const Extent& extent) const { return format ? format : extent.keeping().format; }
};

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
    Status info(const char* tag, sh_occupancy_info* out) const;
    std::vector<sh_occupancy_info> list() const;

private:
    struct Allocation {
        uint64_t bytes = 0;  // as asked for
    };
    using Allocations = std::map<uint64_t, Allocation>;
    using Extents = std::map<uint64_t, std::unique_ptr<Extent>>;

    // Held by the one call that may change something.
    class Turn {
    public:
        ~Turn();
        Status take(Occupancy& of, bool no_wait);

    private:
        Occupancy* of_ = nullptr;
    };

    uint64_t least_chunk() const;
    uint64_t chunk_for(const Alike& alike) const;
    void find_unused(std::vector<AddressRange>* ranges) const;
    Status alloc_in(Tag& tag, uint64_t bytes, Keeping keeping, uint64_t* out_address);
    Status alloc_alone(Tag& tag, uint64_t bytes, Keeping keeping, uint64_t* out_address);
    Status alloc_shared(Tag& tag, uint64_t bytes, Keeping keeping, uint64_t* out_address);
    Status add_chunk(Tag& tag, uint64_t least, Keeping keeping);
    Status add_extent(Tag& tag, uint64_t bytes, bool shared, Keeping keeping, Extent** out);
    void remove_extent(Extent& extent) noexcept;
    void retire(std::unique_ptr<Extent> extent) noexcept;
    bool let_go(Extent& extent) noexcept;
    void retry_retired() noexcept;
    Extent& extent_of(uint64_t address);

    // What a call is about.
    struct Chosen {
        std::vector<Tag*> tags;
        std::vector<std::string> runtimes;  // tags of runtimes
        std::vector<const char*> names() const;
        size_t count() const { return tags.size() + runtimes.size(); }
    };
    Status select(const TagSelection& selection, uint32_t wanted, Chosen* out);
    Status select_one(const char* name, uint32_t wanted, bool repeat, Chosen* out);
    std::vector<Extent*> extents_of(const std::vector<Tag*>& tags);
    Status can_pause() const;
    // What a pause does and finds out.
    struct Release {
        const PauseWishes& wishes;
        CallTimes times;
        uint64_t unchanged_bytes = 0, runtime_bytes = 0;
        bool released = false;
    };
    Status release_all(const Chosen& chosen, Release* release);
    Status release(const std::vector<Extent*>& extents, Release* release);
    Status reserve_host_memory(const std::vector<Extent*>& extents, const PauseWishes& wishes,
                               std::vector<Extent*>* taken);
    // Chooses where contents are kept: in host memory, as far as there may be some, else in files.
    class Stores {
    public:
        enum class Packs { no, yes, maybe };  // maybe: nothing leaves yet
        Stores(const Extents& all, const std::vector<Extent*>& leaving, const PauseWishes& wishes,
               transfer::StagingFiles* files, bool limited, Packs packs);
        // Once for each that leaves, after note_unused().
        Store next(const Extent& extent);

    private:
        const PauseWishes& wishes_;
        transfer::StagingFiles* const files_;
        const Packs packs_;
        uint64_t kept_ = 0;       // by host memory
        uint64_t available_ = 0;  // of the machine; without limit if the engine's allocator gives the memory
    };
    bool packs(const std::vector<Extent*>& extents, const PauseWishes& wishes);
    Status begin_fill(std::vector<Extent*> extents);
    void note_ready(Extent& extent, bool pinned);
    void stop_preparing(std::span<Extent* const> extents) noexcept;
    void go_on_preparing() noexcept;
    static Status lose(const std::vector<Extent*>& extents);
    Status bring_back(const Chosen& chosen, uint64_t* out_runtime_bytes);
    void set_state(const std::vector<Tag*>& tags, uint32_t state);
    void note_carried(const Carried& before, sh_occupancy_change* out) const;
    void publish() noexcept;
    void note_arrived(Extent& extent, uint64_t bytes);

    std::shared_ptr<Device> device_;
    std::mutex working_;
    std::atomic<std::thread::id> worker_{};  // that has its turn

    // Whoever has the turn reads and writes these.
    ExtentTotals totals_;
    uint64_t pinned_bytes_ = 0;  // of host memory
    Accounts accounts_;
    transfer::StagingFiles files_;
    Passage passage_;
    CallbackList callbacks_;
    RuntimeTags runtimes_;
    std::vector<Extent*> preparing_;  // whose host memory is pinned in the background, or waits for its turn
    Allocations allocations_;
    Extents extents_;
    std::vector<std::unique_ptr<Extent>> retired_;  // without allocations, and the driver refused to take them back

    // Guards what other threads read: the tags' names and Tag::info, and what fill_ changes. Whoever has the turn may
    // read them without it.
    mutable std::mutex mutex_;
    std::map<std::string, Tag> tags_;

    // Its thread calls note_ready(). The destructor ends it first.
    transfer::HostFill fill_;
};

}  // namespace stagehand::core
