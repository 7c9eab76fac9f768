#include "core/occupancy/callbacks.h"

#include <string>

namespace stagehand::core {

uint64_t CallbackList::add(const OccupancyCallbacks& callbacks) {
    all_.push_back({last_id_ + 1, callbacks});
    return ++last_id_;
}

void CallbackList::remove(uint64_t id) noexcept {
    std::erase_if(all_, [&](const Entry& entry) { return entry.id == id; });
}

Status CallbackList::before_pause(Names tags) const {
    if (tags.empty()) return Status();
    for (size_t i = 0; i < all_.size(); i++) {
        const OccupancyCallbacks& one = all_[i].callbacks;
        if (!one.before_pause) continue;
        char message[1024] = "";
        const int32_t result = one.before_pause(tags.data(), tags.size(), message, sizeof message, one.user_data);
        if (!result) continue;
        message[sizeof message - 1] = 0;
        after_resume(tags, i);
        return Status(SH_ERROR_CALLBACK, message[0] ? std::string("a callback refuses the pause: ") + message
                                                    : "a callback refuses the pause, with " + std::to_string(result));
    }
    return Status();
}

void CallbackList::after_resume(Names tags, size_t count) const {
    if (tags.empty()) return;
    while (count-- > 0) {
        const OccupancyCallbacks& one = all_[count].callbacks;
        if (one.after_resume) one.after_resume(tags.data(), tags.size(), one.user_data);
    }
}

}  // namespace stagehand::core
