// Users: how many uses of something are under way, and whether the calling thread has begun any of them.
#pragma once

#include <algorithm>
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
        const uint64_t thread = thread_stream::of_this_thread();
        count_++;
        if (Share* share = of(thread); share || (share = of(kNobody))) {
            *share = {thread, share->uses + 1};
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
        Share* share = of(thread_stream::of_this_thread());
        if (!share && listed() > count_)
            share = &*std::ranges::find_if(shares_, [](const Share& s) { return s.uses > 0; });
        if (share && --share->uses == 0) share->thread = kNobody;
    }
    uint32_t count() const { return count_; }
    // Whether some of them have come from the calling thread. They do not end without it then.
    bool are_own() const {
        return std::ranges::any_of(
            shares_, [thread = thread_stream::of_this_thread()](const Share& s) { return s.thread == thread; });
    }

private:
    static constexpr uint64_t kNobody = 0;
    struct Share {
        uint64_t thread = kNobody;
        uint32_t uses = 0;
    };

    Share* of(uint64_t thread) noexcept {
        const auto found = std::ranges::find(shares_, thread, &Share::thread);
        return found == shares_.end() ? nullptr : &*found;
    }
    uint32_t listed() const {
        uint32_t uses = 0;
        for (const Share& share : shares_) uses += share.uses;
        return uses;
    }

    uint32_t count_ = 0;
    std::vector<Share> shares_;
};

}  // namespace stagehand::core
