// Users: how many uses of something are under way, and whether the calling thread has begun any of them.
#pragma once

#include <cstdint>
#include <exception>
#include <vector>

#include "backend/thread_stream.h"

namespace stagehand::core {

class Users {
public:
    Users() { shares_.reserve(8); }

    // A use is only counted if no memory is left for its thread.
    void come() noexcept {
        count_++;
        const sh_stream thread = thread_stream::of_this_thread();
        if (Share* const share = of(thread)) {
            share->uses++;
            return;
        }
        for (Share& share : shares_)
            if (!share.uses) {
                share = {thread, 1};
                return;
            }
        try {
            shares_.push_back({thread, 1});
        } catch (const std::exception&) {
        }
    }
    // Any thread may end a use. It ends one of its own if it has one.
    void go() noexcept {
        count_--;
        Share* const own = of(thread_stream::of_this_thread());
        if (own && own->uses) {
            own->uses--;
            return;
        }
        uint32_t listed = 0;
        for (const Share& share : shares_) listed += share.uses;
        for (Share& share : shares_)
            if (share.uses && listed > count_) {
                share.uses--;
                return;
            }
    }
    uint32_t count() const { return count_; }
    // Whether some of them have come from the calling thread. They do not end without it then.
    bool are_own() const {
        const Share* const own = const_cast<Users*>(this)->of(thread_stream::of_this_thread());
        return own && own->uses;
    }

private:
    struct Share {
        sh_stream thread = 0;  // its default stream, whose name no other thread gets later
        uint32_t uses = 0;     // 0: free for another thread
    };

    Share* of(sh_stream thread) noexcept {
        for (Share& share : shares_)
            if (share.thread == thread) return &share;
        return nullptr;
    }

    uint32_t count_ = 0;
    std::vector<Share> shares_;
};

}  // namespace stagehand::core
