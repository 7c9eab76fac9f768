#include "transfer/carrier/division.h"

namespace stagehand::transfer {

void Division::begin(size_t ways) {
    links_.assign(ways + 1, {});
    own_.clear();
    parts_.clear();
    is_cut_ = false;
}

void Division::add(const Command& command) {
    own_.push_back(command);
    own_.back().joins = command.joins && !is_cut_;
    is_cut_ = false;
}

void Division::divide(const Command& command, uint64_t grain, uint64_t least) {
    add(command);
    is_cut_ = true;
    deal(command.bytes, grain, least, 0, links_);
    uint64_t done = own_.back().bytes = links_[0].bytes;
    for (size_t i = 1; i < links_.size(); i++) {
        const uint64_t bytes = links_[i].bytes;
        if (!bytes) continue;
        parts_.push_back(
            {i - 1, {command.kind, false, command.device + done, command.other + done, bytes, command.waits}});
        done += bytes;
    }
}

}  // namespace stagehand::transfer
