// ClassPool: pinned host memory in size classes, for bytes that leave the device for a while.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <thread>
#include <vector>

#include "backend/backend_device.h"
#include "base/status.h"
#include "transfer/host/pinned_memory.h"

namespace stagehand::transfer {

// A buffer of the pool.
struct PoolBuffer {
    void* data = nullptr;
    uint64_t bytes = 0;        // of the buffer: for a pinned one, those of its class
    uint64_t asked_class = 0;  // the class that the bytes ask for
    uint64_t filled = 0;       // the trip from the device into the buffer; 0: there was none
    uint64_t emptied = 0;      // the last trip out of the buffer to the device
    bool pinned = false;
};

struct SizeClass {
    uint64_t bytes = 0;
    uint64_t count = 0;
};

struct ClassPoolOptions {
    std::span<const SizeClass> classes;  // smallest first; if empty, the pool makes classes for the sizes that it sees
    uint64_t limit_bytes = 0;            // of pinned memory
};

struct ClassPoolFigures {
    uint64_t hits = 0, misses = 0;
    uint64_t pinned_bytes = 0;    // of the pool
    uint64_t unpinned_bytes = 0;  // of misses that are in use
};

// A buffer comes from the smallest class that fits, else from the next larger class with a free buffer, else it is
// memory that is not pinned: a miss. Misses never wait for memory to be pinned. grow() lets a thread of the pool pin
// what was missing, so that a repeated step has no misses. Thread-safe.
class ClassPool {
public:
    ClassPool(BackendDevice& device, const ClassPoolOptions& options);
    // All buffers were given back, and no copy uses them.
    ~ClassPool();
    ClassPool(const ClassPool&) = delete;
    ClassPool& operator=(const ClassPool&) = delete;

    // Pins the buffers that the classes ask for.
    Status prepare();

    Status take(uint64_t bytes, std::unique_ptr<PoolBuffer>* out);
    // Copies may still use a pinned buffer: its next user waits for its trips. No copy uses an unpinned one.
    void give(std::unique_ptr<PoolBuffer> buffer) noexcept;

    // Begins to pin the buffers that were missing since the last call, on a thread of the pool. Does nothing while that
    // thread still works.
    void grow();
    // Waits until the thread of grow() has ended.
    void wait_for_growth();
    // Frees the memory whose buffers are all free, after copies that still use it: `settle` waits for the trips of a
    // buffer. Memory for which it fails is kept.
    using Settle = std::function<Status(const PoolBuffer&)>;
    Status trim(const Settle& settle, uint64_t* freed_bytes);
    // Never frees memory that copies may use for ever.
    void abandon() noexcept;
    ClassPoolFigures figures() const;

private:
    // The key is the size of its buffers.
    struct Class {
        uint64_t buffers = 0;
        uint64_t wanted = 0;       // buffers in use now whose bytes ask for this class, misses among them
        uint64_t wanted_peak = 0;  // since the last growth
        std::vector<std::unique_ptr<PoolBuffer>> free;
        std::vector<PinnedMemory> chunks;  // each was pinned at once, and holds as many buffers as fit
    };
    using Classes = std::map<uint64_t, Class>;

    uint64_t class_bytes(uint64_t bytes) const;
    std::unique_ptr<PoolBuffer> take_free(Classes::iterator from);
    Status take_unpinned(uint64_t bytes, std::unique_ptr<PoolBuffer>* out);
    std::vector<SizeClass> missing();
    Status add_buffers(uint64_t bytes, uint64_t count);
    Status add_chunk(uint64_t bytes, uint64_t count);
    uint64_t room() const;
    static Status trim_class(uint64_t bytes, Class& size_class, const Settle& settle, uint64_t* freed_bytes);

    BackendDevice& device_;
    const bool fixed_classes_;
    const uint64_t limit_bytes_;
    const std::vector<SizeClass> to_prepare_;
    mutable std::mutex mutex_;
    Classes classes_;
    ClassPoolFigures figures_;
    bool full_ = false;  // the system pins no more
    bool growing_ = false;
    std::thread grower_;
};

}  // namespace stagehand::transfer
