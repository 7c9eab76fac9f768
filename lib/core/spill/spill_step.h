// SpillStep: the copies of a spiller's step under way, or of the last one, in the order of saving, and what is foreseen
// of the step.
#pragma once

#include <cstdint>
#include <vector>

#include "core/spill/copies.h"
#include "core/spill/room_for_one.h"
#include "policy/departures.h"
#include "policy/restore_order.h"

namespace stagehand::core {

// The spiller's mutex guards it.
class SpillStep {
public:
    explicit SpillStep(const policy::KeepLimits& limits) : departures_(limits) {}

    // `position`: of the link that the copies come back through.
    void begin(uint64_t number, uint64_t position);
    void end();
    bool is_open() const { return open_; }
    uint64_t number() const { return number_; }  // the engine's

    // Makes the next add() one that cannot fail. `living`: copies of all steps. An engine without steps may always have
    // a ticket that lives. Its order begins again when most of it is of the past.
    void make_room(size_t living);
    void add(SavedCopy& copy);
    void remove(const SavedCopy& copy) {
        if (copy.ordinal != UINT32_MAX) copies_[copy.ordinal] = nullptr;
    }
    // Tickets of the step stay, but their numbers mean nothing in the next one.
    void forget();

    policy::Departures& departures() { return departures_; }
    void note_restore(const SavedCopy& copy, uint64_t position) {
        if (copy.ordinal != UINT32_MAX) order_.restore(copy.ordinal, position - began_at_);
    }
    void visit_all_again() { order_.visit_all_again(); }
    // See policy::RestoreOrder. `visit` gets the copy, or null if it has ended.
    template <class Visit>
    void for_each_next(Visit&& visit) {
        order_.for_each_next([&](uint32_t ordinal) { return visit(static_cast<const SavedCopy*>(copies_[ordinal])); });
    }
    // The position of the link at which the copy is needed, as the step before tells. 0: not known.
    uint64_t needed_at(const SavedCopy& copy) const {
        const uint64_t time = order_.time_of(copy.ordinal);
        return time ? began_at_ + time : 0;
    }

private:
    uint64_t number_ = 0;
    bool open_ = false;
    uint64_t began_at_ = 0;           // position of the link
    std::vector<SavedCopy*> copies_;  // by their numbers in order_; null: ended
    policy::RestoreOrder order_;
    policy::Departures departures_;
};

}  // namespace stagehand::core
