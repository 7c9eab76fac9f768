#include "core/spill/spill_step.h"

namespace stagehand::core {

void SpillStep::begin(uint64_t number, uint64_t position) {
    forget();
    departures_.begin_step();
    number_ = number;
    began_at_ = position;
    open_ = true;
}

void SpillStep::end() {
    open_ = false;
    departures_.end_step();
    forget();
}

void SpillStep::forget() {
    order_.end_step();
    for (SavedCopy* copy : copies_)
        if (copy) copy->ordinal = UINT32_MAX;
    copies_.clear();
}

void SpillStep::make_room(size_t living) {
    constexpr size_t kFew = 4096;
    if (!open_ && copies_.size() > kFew && copies_.size() / 4 > living) forget();
    make_room_for_one(copies_);
}

void SpillStep::add(SavedCopy& copy) {
    copy.ordinal = order_.save();
    copies_.push_back(&copy);
}

}  // namespace stagehand::core
