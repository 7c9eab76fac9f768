// TimedSpan: the time between two points of a stream, by events of the device.
#pragma once

#include <cstdint>
#include <utility>

#include "backend/backend_device.h"
#include "base/once_more.h"
#include "base/status.h"

namespace stagehand {

// Keeps its events. Not thread-safe.
class TimedSpan {
public:
    explicit TimedSpan(BackendDevice& device) : device_(&device) {}
    TimedSpan(TimedSpan&& other) noexcept
        : device_(other.device_), begin_(std::exchange(other.begin_, 0)), end_(std::exchange(other.end_, 0)) {}
    TimedSpan& operator=(TimedSpan&& other) noexcept {
        std::swap(device_, other.device_);
        std::swap(begin_, other.begin_);
        std::swap(end_, other.end_);
        return *this;
    }
    ~TimedSpan() {
        for (const sh_backend_event event : {begin_, end_})
            if (event) (void)once_more([&] { return device_->event_destroy(event); }).ok();
    }

    // Makes the events, which begin() does otherwise.
    Status open() {
        for (sh_backend_event* const event : {&begin_, &end_})
            if (!*event) SH_TRY(device_->event_create(true, event));
        return Status();
    }
    Status begin(sh_stream stream) {
        SH_TRY(open());
        return device_->event_record(begin_, stream);
    }
    Status end(sh_stream stream) { return device_->event_record(end_, stream); }
    // After end(). read() is for a span that has ended.
    Status has_ended(bool* out) const {
        uint32_t done = 0;
        SH_TRY(device_->event_query(end_, &done));
        *out = done;
        return Status();
    }
    Status wait() const { return device_->event_synchronize(end_); }
    Status read(int64_t* ns) const { return device_->event_elapsed(begin_, end_, ns); }

private:
    BackendDevice* device_;
    sh_backend_event begin_ = 0, end_ = 0;
};

}  // namespace stagehand
