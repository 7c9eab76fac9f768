// Device: an open host device. It owns the memory, the streams, the events and the pinned ranges of the device.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <utility>
#include <vector>

#include <stagehand/backend.h>

#include "host/allocations.h"
#include "host/device_memory.h"
#include "host/event.h"
#include "host/host_backend.h"
#include "host/pacing.h"
#include "host/record.h"
#include "host/settings.h"
#include "host/stream.h"
#include "support/pinned_ranges.h"

namespace stagehand::host {

// The live objects of one kind, by handle. A handle is never used twice in the process. A stale handle, and a handle of
// another device or another kind, is not found.
template <class Object>
class LiveSet {
public:
    uint64_t add(std::shared_ptr<Object> object) {
        const uint64_t handle = next_handle().fetch_add(1, std::memory_order_relaxed);
        std::lock_guard lock(mutex_);
        objects_.emplace(handle, std::move(object));
        return handle;
    }

    std::shared_ptr<Object> find(uint64_t handle) const {
        std::lock_guard lock(mutex_);
        const auto found = objects_.find(handle);
        return found == objects_.end() ? nullptr : found->second;
    }

    std::shared_ptr<Object> remove(uint64_t handle) {
        std::lock_guard lock(mutex_);
        const auto found = objects_.find(handle);
        if (found == objects_.end()) return nullptr;
        std::shared_ptr<Object> object = std::move(found->second);
        objects_.erase(found);
        return object;
    }

    std::vector<std::shared_ptr<Object>> all() const {
        std::lock_guard lock(mutex_);
        std::vector<std::shared_ptr<Object>> objects;
        for (const auto& [handle, object] : objects_) objects.push_back(object);
        return objects;
    }

    size_t size() const {
        std::lock_guard lock(mutex_);
        return objects_.size();
    }

    // Takes all objects out, so that they are destroyed without the lock.
    std::unordered_map<uint64_t, std::shared_ptr<Object>> clear() {
        std::lock_guard lock(mutex_);
        return std::exchange(objects_, {});
    }

private:
    mutable std::mutex mutex_;
    std::unordered_map<uint64_t, std::shared_ptr<Object>> objects_;

    static std::atomic<uint64_t>& next_handle();
};

class Device {
public:
    explicit Device(const Settings& settings);
    // Stops the streams that are left, and frees all memory.
    ~Device();
    Device(const Device&) = delete;
    Device& operator=(const Device&) = delete;

    sh_status open() { return memory_.open(); }
    void describe(sh_backend_device_info* out) const;
    MemoryStatistics statistics() const;

    DeviceMemory& memory() { return memory_; }
    bool maps_pages() const { return settings_.map_pages; }
    Allocations& allocations() { return allocations_; }  // used if the device does not map pages

    sh_status pin(const void* memory, uint64_t bytes);
    support::PinnedRanges& pinned() { return pinned_; }

    sh_status stream_create(sh_stream* out_stream);
    sh_status stream_destroy(sh_stream stream);
    sh_status stream_synchronize(sh_stream stream);
    // Waits for all streams.
    void synchronize();
    sh_status stream_wait_event(sh_stream stream, sh_backend_event event);
    sh_status enqueue(sh_stream stream, Command&& command);

    std::shared_ptr<Event> own_event(sh_backend_event handle) const { return events_.find(handle); }
    sh_status event_create(bool timing, sh_backend_event* out_event);
    sh_status event_destroy(sh_backend_event event);
    sh_status event_record(sh_backend_event event, sh_stream stream);
    sh_status event_query(sh_backend_event event, uint32_t* out_done);
    sh_status event_synchronize(sh_backend_event event);
    sh_status event_elapsed(sh_backend_event begin, sh_backend_event end, int64_t* out_ns);

private:
    sh_status find_event(sh_backend_event handle, std::shared_ptr<Event>* out) const;
    sh_status find_stream(sh_stream handle, std::shared_ptr<Stream>* out) const;

    const Settings settings_;
    DeviceMemory memory_;
    Allocations allocations_{memory_};
    support::PinnedRanges pinned_;
    Pacing pacing_;
    std::atomic<uint64_t> streams_made_{0};
    LiveSet<Event> events_;
    LiveSet<Stream> streams_;
};

}  // namespace stagehand::host
