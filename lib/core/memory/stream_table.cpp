#include "core/memory/stream_table.h"

#include <algorithm>

#include "base/unlocked.h"

namespace stagehand::core {

Status StreamTable::find(sh_stream stream, uint32_t* out) {
    uint32_t place = kStreams;
    for (uint32_t i = 0; i < entries_.size(); i++) {
        if (entries_[i].live && entries_[i].stream == stream) {
            *out = last_ = i;
            return Status();
        }
        if (!entries_[i].live) place = std::min(place, i);
    }
    if (place == kStreams && entries_.size() < kStreams) {
        place = static_cast<uint32_t>(entries_.size());
        entries_.emplace_back();
    }
    if (place == kStreams) {
        place = static_cast<uint32_t>(std::min_element(entries_.begin(), entries_.end(),
                                                       [](const Entry& a, const Entry& b) { return a.used < b.used; }) -
                                      entries_.begin());
        SH_TRY(synchronize(uint64_t(1) << place));
    }
    Entry& entry = entries_[place];
    entry.stream = stream;
    entry.live = entry.unrecorded = entry.recorded = false;
    SH_TRY(check_no_capture(stream));
    SH_TRY(record(entry));  // finds a stream that the driver does not know, before anything depends on it
    entry.live = true;
    *out = last_ = place;
    return Status();
}

// If the driver cannot answer for a stream, the next call with that stream will fail.
bool StreamTable::captures(sh_stream stream) {
    uint32_t capturing = 0;
    return device_.has_graphs() && device_.stream_is_capturing(stream, &capturing).ok() && capturing;
}

Status StreamTable::check_no_capture(sh_stream stream) {
    if (!captures(stream)) return Status();
    return Status(
        SH_ERROR_INVALID_STATE,
        "the stream takes part in a capture that the runtime does not know: begin a capture of this runtime first "
        "(sh_capture_begin())");
}

Status StreamTable::record(Entry& entry) {
    Status status;
    if (!entry.event) status = events_.take(&entry.event);
    if (status.ok()) status = device_.event_record(entry.event, entry.stream);
    if (status.ok()) {
        entry.unrecorded = false;
        entry.recorded = true;
    } else {
        // The error is reported now and not tried again later, because the step may end with this call and the engine
        // may then destroy the stream. If the stream can be waited for, it was not destroyed, and its uses have ended
        // after the wait. If the stream was destroyed without having been forgotten, the error is reported once, and
        // there is nothing left to wait for.
        const Status waited = device_.stream_synchronize(entry.stream);
        if (waited.ok())
            entry.unrecorded = entry.recorded = false;
        else if (waited.code() == SH_ERROR_INVALID_HANDLE)
            entry.live = false;
    }
    return status;
}

Status StreamTable::record_if_marked(Entry& entry) {
    if (!entry.unrecorded) return Status();
    SH_TRY(check_no_capture(entry.stream));  // recorded when the capture has ended
    return record(entry);
}

// Records each marked stream of the set and passes it to `then`. A failure of one stream does not affect the others.
// The first failure is returned in the end.
template <class Then>
Status StreamTable::for_each(uint64_t set, Then&& then) {
    Status first;
    for (uint32_t i = 0; i < entries_.size(); i++) {
        Entry& entry = entries_[i];
        if (!entry.live || !(set >> i & 1)) continue;
        Status status = record_if_marked(entry);
        if (status.ok()) status = then(entry);
        if (first.ok()) first = std::move(status);
    }
    return first;
}

Status StreamTable::record_all() {
    return for_each(~uint64_t(0), [](Entry&) { return Status(); });
}

Status StreamTable::append_events(uint64_t set, std::vector<sh_backend_event>* out) {
    const size_t before = out->size();
    Status status = for_each(set, [&](Entry& entry) {
        if (entry.recorded) out->push_back(entry.event);
        return Status();
    });
    if (!status.ok()) out->resize(before);
    return status;
}

bool StreamTable::are_over(uint64_t set) {
    for (uint32_t i = 0; i < entries_.size(); i++) {
        Entry& entry = entries_[i];
        if (!entry.live || !(set >> i & 1)) continue;
        uint32_t done = 0;
        if (!record_if_marked(entry).ok()) return false;
        if (entry.recorded && !(device_.event_query(entry.event, &done).ok() && done)) return false;
    }
    return true;
}

Status StreamTable::synchronize(uint64_t set) {
    return for_each(set, [&](Entry& entry) {
        if (entry.recorded) SH_TRY(device_.event_synchronize(entry.event));
        entry.recorded = false;
        return Status();
    });
}

Status StreamTable::wait(uint64_t set, std::unique_lock<std::mutex>& lock) {
    std::vector<sh_backend_event> events;
    SH_TRY(append_events(set, &events));
    return unlocked(lock, [&] {
        Status status;
        for (const sh_backend_event event : events)
            if (Status waited = device_.event_synchronize(event); status.ok()) status = waited;
        return status;
    });
}

Status StreamTable::forget(sh_stream stream) {
    for (uint32_t i = 0; i < entries_.size(); i++) {
        if (!entries_[i].live || entries_[i].stream != stream) continue;
        SH_TRY(synchronize(uint64_t(1) << i));
        entries_[i].live = false;
    }
    return Status();
}

}  // namespace stagehand::core
