// StreamSet: the streams of the tickets that share a copy. A stream is in it as long as one of its tickets lives: the
// engine may destroy it afterwards.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include <stagehand/base.h>

#include "base/status.h"
#include "core/spill/room_for_one.h"

namespace stagehand::core {

class StreamSet {
public:
    // Makes the next join() one that cannot fail.
    void make_room() { make_room_for_one(members_); }
    void join(sh_stream stream) noexcept {
        const auto member = std::ranges::find(members_, stream, &Member::stream);
        if (member == members_.end())
            members_.push_back({stream, 1});
        else
            member->tickets++;
    }
    // Returns whether this was the last ticket of the stream.
    bool leave(sh_stream stream) noexcept {
        const auto member = std::ranges::find(members_, stream, &Member::stream);
        if (--member->tickets) return false;
        members_.erase(member);
        return true;
    }
    // Each stream of the device once, until `visit` fails.
    template <class Visit>
    Status for_each(Visit&& visit) const {
        for (const Member& member : members_)
            if (member.stream != SH_STREAM_HOST) SH_TRY(visit(member.stream));
        return Status();
    }
    // The number of streams of the device.
    size_t size() const {
        return members_.size() - static_cast<size_t>(std::ranges::count(members_, SH_STREAM_HOST, &Member::stream));
    }

private:
    struct Member {
        sh_stream stream;
        uint64_t tickets;
    };
    std::vector<Member> members_;
};

}  // namespace stagehand::core
