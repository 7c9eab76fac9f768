#include "core/movement/graph.h"

#include <utility>

#include "base/once_more.h"

namespace stagehand::core {

CaptureObjects::CaptureObjects(CaptureObjects&& other) noexcept
    : device_(other.device_),
      events_(std::move(other.events_)),
      carrier_(std::move(other.carrier_)),
      unpacker_(std::move(other.unpacker_)) {
    other.events_.clear();
}

CaptureObjects::~CaptureObjects() {
    for (const sh_backend_event event : events_) (void)once_more([&] { return device_->event_destroy(event); }).ok();
}

Status CaptureObjects::event(sh_backend_event* out) {
    events_.reserve(events_.size() + 1);
    SH_TRY(device_->event_create(false, out));
    events_.push_back(*out);
    return Status();
}

}  // namespace stagehand::core
