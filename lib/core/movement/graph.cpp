#include "core/movement/graph.h"

#include <utility>

#include "base/log.h"
#include "base/once_more.h"

namespace stagehand::core {

CaptureObjects::CaptureObjects(CaptureObjects&& other) noexcept
    : device_(other.device_), copy_stream_(std::exchange(other.copy_stream_, SH_STREAM_HOST)), events_(std::move(other.events_)) {
    other.events_.clear();
}

CaptureObjects::~CaptureObjects() {
    for (const sh_backend_event event : events_) (void)once_more([&] { return device_->event_destroy(event); }).ok();
    if (copy_stream_ == SH_STREAM_HOST) return;
    if (Status status = once_more([&] { return device_->stream_destroy(copy_stream_); }); !status.ok())
        log_line(SH_LOG_WARNING, "%s", status.text());
}

Status CaptureObjects::open() { return device_->stream_create(&copy_stream_); }

Status CaptureObjects::event(sh_backend_event* out) {
    events_.reserve(events_.size() + 1);
    SH_TRY(device_->event_create(false, out));
    events_.push_back(*out);
    return Status();
}

}  // namespace stagehand::core
