// StreamTable: the engine's streams that a runtime has seen, each with an event that stands for their last use of it.
#pragma once

#include <bit>
#include <cstdint>
#include <mutex>
#include <vector>

#include "backend/backend_device.h"
#include "base/status.h"
#include "core/device/event_pool.h"

namespace stagehand::core {

// Streams are numbered, so that a unit remembers in one word which of them used it. Within a step a release only marks the
// stream; an event is recorded when somebody must wait, or when the step ends, after which the engine may destroy the stream. A thread's own
// default stream is recorded at once: later it may be another thread that has to wait, and that cannot record it.
class StreamTable {
public:
    static constexpr uint32_t kStreams = 64;

    StreamTable(BackendDevice& device, EventPool& events) : device_(device), events_(events) { entries_.reserve(kStreams); }
    ~StreamTable() {
        for (Entry& entry : entries_) events_.give(&entry.event);
    }

    // The stream's number. A full table first waits for, and forgets, the stream that was used the longest ago.
    Status number(sh_stream stream, uint32_t* out) {
        if (last_ < entries_.size() && entries_[last_].stream == stream && entries_[last_].live) {
            *out = last_;
            return Status();
        }
        return find(stream, out);
    }

    // Work that uses the runtime's memory was queued on the stream since its event was recorded.
    void mark(uint32_t number) {
        entries_[number].unrecorded = true;
        entries_[number].used = ++clock_;
    }

    // number() and mark() where nothing can fail: false unless it is the stream that was asked for last, and none that is recorded at once.
    bool mark_if_last(sh_stream stream, uint64_t* used) {
        if (stream > thread_stream::kNone) return false;
        if (last_ >= entries_.size() || entries_[last_].stream != stream || !entries_[last_].live) return false;
        mark(last_);
        *used |= uint64_t(1) << last_;
        return true;
    }

    // Records a stream that was marked and takes part in no capture.
    Status record(uint32_t number) { return record(entries_[number]); }
    // These go on after a stream that fails, and return the first failure: the others have been recorded, or waited for, then.
    // Records what is marked; at a step's end, and before anybody waits.
    Status record_all();
    // Appends the events that stand for the last uses of the streams in `set`, for a copy stream to wait for; none of them on a failure.
    Status append_events(uint64_t set, std::vector<sh_backend_event>* out);
    // Whether the last uses of the streams in `set` have ended. What fails to tell has not.
    bool are_over(uint64_t set);
    // Waits on the host for the last uses of the streams in `set`.
    Status synchronize(uint64_t set);
    // The same with the mutex given up meanwhile.
    Status wait(uint64_t set, std::unique_lock<std::mutex>& lock);
    Status synchronize_all() { return synchronize(~uint64_t(0)); }
    // SH_ERROR_INVALID_STATE while the stream takes part in a capture: an event that is recorded there belongs to the graph, and who waits
    // for it later spoils the capture, or waits for nothing.
    Status check_no_capture(sh_stream stream);
    // Waits for the stream's work and drops it.
    Status forget(sh_stream stream);

private:
    struct Entry {
        sh_stream stream = 0;
        sh_backend_event event = 0;
        uint64_t used = 0;
        bool unrecorded = false;
        bool recorded = false;
        bool live = false;
    };

    Status find(sh_stream stream, uint32_t* out);
    bool captures(sh_stream stream);
    Status record(Entry& entry);
    Status record_if_marked(Entry& entry);
    template <class Then>
    Status for_each(uint64_t set, Then&& then);

    BackendDevice& device_;
    EventPool& events_;
    std::vector<Entry> entries_;
    uint32_t last_ = 0;
    uint64_t clock_ = 0;
};

}  // namespace stagehand::core
