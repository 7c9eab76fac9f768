// Event: a name for the latest of its recordings.
#pragma once

#include <mutex>

#include <stagehand/base.h>

#include "host/record.h"

namespace stagehand::host {

class Stream;

class Event {
public:
    explicit Event(bool timing) : timing_(timing) {}

    bool timing() const { return timing_; }

    // Records the event behind all commands that are queued on the stream. Returns SH_ERROR_INVALID_HANDLE if the
    // stream is being destroyed.
    sh_status record(RecordPool& pool, Stream& stream);

    // Returns the latest recording. Null if the event was never recorded.
    RecordPointer latest() const {
        std::lock_guard lock(mutex_);
        return latest_;
    }

private:
    const bool timing_;
    mutable std::mutex mutex_;
    RecordPointer latest_;
};

}  // namespace stagehand::host
