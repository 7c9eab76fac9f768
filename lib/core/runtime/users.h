// Users: how many uses of something are under way, and whether the calling thread alone can end them.
#pragma once

#include <cstdint>

#include "backend/thread_stream.h"

namespace stagehand::core {

class Users {
public:
    void come() noexcept {
        const uint64_t thread = thread_stream::of_this_thread();
        thread_ = count_++ == 0 || thread_ == thread ? thread : kSeveral;
    }
    void go() noexcept { count_--; }
    uint32_t count() const { return count_; }
    // Whether all of them have come from the calling thread. They do not end without it then.
    bool are_own() const { return count_ && thread_ == thread_stream::of_this_thread(); }

private:
    static constexpr uint64_t kSeveral = 0;
    uint32_t count_ = 0;
    uint64_t thread_ = kSeveral;  // where the uses have come from since nobody was there
};

}  // namespace stagehand::core
