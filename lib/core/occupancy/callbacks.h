// Callbacks: what an engine has called before a pause and after a resume.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include <stagehand/occupancy.h>

#include "base/status.h"

namespace stagehand::core {

struct OccupancyCallbacks {
    sh_before_pause_fn before_pause = nullptr;
    sh_after_resume_fn after_resume = nullptr;
    void* user_data = nullptr;
};

// One caller at a time. The functions that are called must not add or remove callbacks.
class CallbackList {
public:
    // The names of the tags that a call concerns.
    using Names = std::span<const char* const>;

    uint64_t add(const OccupancyCallbacks& callbacks);
    void remove(uint64_t id) noexcept;

    // In the order in which they were added, up to the one that refuses. Those before it are told that the tags run.
    Status before_pause(Names tags) const;
    // The last one that was added comes first.
    void after_resume(Names tags) const { after_resume(tags, all_.size()); }

private:
    struct Entry {
        uint64_t id = 0;
        OccupancyCallbacks callbacks;
    };

    void after_resume(Names tags, size_t count) const;

    std::vector<Entry> all_;
    uint64_t last_id_ = 0;
};

}  // namespace stagehand::core
