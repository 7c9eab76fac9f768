// OrderRecord: the units that a step uses, as they come, from which an order is learned.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "core/plan/sequence.h"

namespace stagehand::core {

class OrderRecord {
public:
    // A step with more entries than this has no order.
    static constexpr size_t kLongest = size_t(1) << 21;

    bool under_way() const { return under_way_; }
    void begin() noexcept;
    // If host memory is too short, the record ends: an incomplete record is no order.
    void add(uint32_t unit) noexcept;
    void end() noexcept { under_way_ = false; }
    // What was recorded in the step under way, or in the last one. Empty if it is no order.
    const std::vector<Sequence::Entry>& entries() const;
    // Removes units that are gone.
    template <class IsGone>
    void forget(IsGone is_gone) noexcept {
        std::erase_if(entries_, [&](const Sequence::Entry& entry) { return is_gone(entry.unit); });
    }

private:
    std::vector<Sequence::Entry> entries_;
    bool under_way_ = false;
};

}  // namespace stagehand::core
