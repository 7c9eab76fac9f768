// StreamTable: the engine's streams that a runtime has seen, each with an event that stands for the stream's last use
// of the runtime's memory.
#pragma once

#include <bit>
#include <cstdint>
#include <mutex>
#include <vector>

#include "backend/backend_device.h"
#include "base/status.h"
#include "core/device/event_pool.h"

namespace stagehand::core {

// Streams are numbered, so that one word of a unit records which streams used it. Within a step a release only marks
// the stream. The event is recorded when somebody must wait, or when the step ends. The engine may destroy the stream
// after that. A thread's own default stream is recorded at once, because another thread may have to wait later and
// cannot record it.
class StreamTable {
public:
    static constexpr uint32_t kStreams = 64;

    StreamTable(BackendDevice& device, EventPool& events) : device_(device), events_(events) {
        entries_.reserve(kStreams);
    }
    ~StreamTable() {
        for (Entry& entry : entries_) events_.give(&entry.event);
    }

    // The stream's number. If the table is full, it first waits for the least recently used stream and forgets it.
    Status number(sh_stream stream, uint32_t* out) {
        if (last_ < entries_.size() && entries_[last_].stream == stream && entries_[last_].live) {
            *out = last_;
            return Status();
        }
        return find(stream, out);
    }

    // Marks that work that uses the runtime's memory was queued on the stream since its event was recorded.
    void mark(uint32_t number) {
        entries_[number].unrecorded = true;
        entries_[number].used = ++clock_;
    }

    // Does number() and mark() if nothing can fail. Returns false unless the stream is the last one asked for and is
    // not recorded at once.
    bool mark_if_last(sh_stream stream, uint64_t* used) {
        if (stream > thread_stream::kNone) return false;
        if (last_ >= entries_.size() || entries_[last_].stream != stream || !entries_[last_].live) return false;
        mark(last_);
        *used |= uint64_t(1) << last_;
        return true;
    }

    // Records the event of a stream. The stream was marked and takes part in no capture.
    Status record(uint32_t number) { return record(entries_[number]); }
    // The following methods go on after a stream that fails, and return the first failure. The other streams have then
    // been recorded or waited for. record_all() records all marked streams. It is called at the end of a step and
    // before anybody waits.
    Status record_all();
    // Appends the events of the last uses of the streams in `set`, so that a copy stream can wait for them. Appends
    // none on a failure.
    Status append_events(uint64_t set, std::vector<sh_backend_event>* out);
    // The last uses of the streams in `set` have ended. A stream that fails to answer counts as not ended.
    bool are_over(uint64_t set);
    // Waits on the host for the last uses of the streams in `set`.
    Status synchronize(uint64_t set);
    // Gives the mutex up meanwhile.
    Status wait(uint64_t set, std::unique_lock<std::mutex>& lock);
    Status synchronize_all() { return synchronize(~uint64_t(0)); }
    // SH_ERROR_INVALID_STATE while the stream takes part in a capture. An event that is recorded there belongs to the
    // graph. A later wait for it would spoil the capture, or would wait for nothing.
    Status check_no_capture(sh_stream stream);
    // Waits for the stream's work, and removes the stream.
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
