// HostFill: threads that make host memory present and pin it, piece by piece, while others use the pieces before.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "backend/backend_device.h"
#include "base/status.h"
#include "transfer/host/gradual_memory.h"

namespace stagehand::transfer {

// Several threads make pages present, in the order of the memories, and others pin the pieces after them, each those of
// another memory. One caller at a time, except for wait_for().
class HostFill {
public:
    // Tells that a piece of the memory at `index` has become ready, on a thread that pins. The receiver calls
    // GradualMemory::note_ready(), under a lock that the readers of the memory take too.
    using Note = std::function<void(size_t index, bool pinned)>;

    explicit HostFill(BackendDevice& device) : device_(device) {}
    ~HostFill() { stop(); }
    HostFill(const HostFill&) = delete;
    HostFill& operator=(const HostFill&) = delete;

    // Begins with memories that are not ready. They stay where they are until stop().
    Status start(const std::vector<GradualMemory*>& memories, Note note);
    // Waits until the bytes before `end` are ready, and tells whether they are pinned. Returns at once for memory that
    // is none of the above. Returns the error of a thread if there was one.
    Status wait_for(const GradualMemory& memory, uint64_t end, bool* out_pinned);
    // Ends after the pieces that are under way. The memory keeps the pieces that are ready.
    void stop() noexcept;

private:
    struct Piece {
        size_t memory = 0;  // index
        uint64_t offset = 0, bytes = 0;
        uint64_t units = 0;  // that are not present yet
    };
    struct Unit {
        size_t piece = 0;
        uint64_t offset = 0, bytes = 0;  // in the memory
    };

    void plan(const std::vector<GradualMemory*>& memories);
    Status begin_threads();
    Status begin_thread(const char* name, void (HostFill::*work)());
    void touch_units();
    void pin_memories();
    bool make_ready(const Piece& piece);  // false: the fill has been stopped
    bool pin(char* begin, uint64_t bytes);
    void fail(Status status) noexcept;

    BackendDevice& device_;
    Note note_;
    std::vector<GradualMemory*> memories_;
    std::vector<Piece> pieces_;  // in the order of the memories; `units` is guarded by mutex_
    std::vector<Unit> units_;
    std::atomic<size_t> next_unit_ = 0, next_memory_ = 0;
    std::atomic<bool> refused_ = false;  // the system has refused to pin
    std::vector<std::thread> threads_;

    std::mutex mutex_;  // guards what follows
    std::condition_variable changed_;
    struct Ready {
        uint64_t bytes = 0, pinned_bytes = 0;  // from the start
    };
    std::map<const GradualMemory*, Ready> ready_;
    Status status_;
    bool stopping_ = false;
};

}  // namespace stagehand::transfer
