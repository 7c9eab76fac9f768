#include "core/plan/order_record.h"

#include "base/no_throw.h"

namespace stagehand::core {

void OrderRecord::begin() noexcept {
    under_way_ = true;
    entries_.clear();
}

void OrderRecord::add(uint32_t unit) noexcept {
    if (!under_way_) return;
    if (!entries_.empty() && entries_.back().unit == unit) {
        entries_.back().uses++;
        return;
    }
    if (entries_.size() >= kLongest) return;
    const Status added = no_throw([&] {
        entries_.push_back({unit, 0, 1});
        return Status();
    });
    if (!added.ok()) under_way_ = false;
}

const std::vector<Sequence::Entry>& OrderRecord::entries() const {
    static const std::vector<Sequence::Entry> none;
    return entries_.size() < kLongest ? entries_ : none;
}

}  // namespace stagehand::core
