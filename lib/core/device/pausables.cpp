#include "core/device/pausables.h"

#include <algorithm>

namespace stagehand::core {

std::string runtime_tag_of(const std::string& runtime_name) {
    std::string tag = std::string(kRuntimeTagPrefix) + runtime_name;
    size_t end = std::min(tag.size(), sizeof sh_occupancy_info::tag - 1);
    while (end < tag.size() && (static_cast<unsigned char>(tag[end]) & 0xc0) == 0x80) end--;
    tag.resize(end);
    return tag;
}

void Pausables::join(Pausable& one) {
    const std::lock_guard lock(mutex_);
    all_.push_back(&one);
}

void Pausables::leave(Pausable& one) noexcept {
    const std::lock_guard calling(calling_);
    const std::lock_guard lock(mutex_);
    std::erase(all_, &one);
}

}  // namespace stagehand::core
