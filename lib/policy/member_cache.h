// MemberCache: which members of groups have a slot on the device, if all members have one shape and share the slots.
//
// A group is a layer of a mixture of experts, and its members are the experts. The groups are called in turn, and a
// call tells the members that it needs. A member that has no slot takes that of the member whose next use is expected
// last. That is known by the value of a member (its chance to be used in its group's next call) and by the time of that
// call. Members that are held, or that the call in hand still needs, are never chosen.
//
// A call costs O(width of the group), everything else O(log members). Nothing allocates after the constructor, except
// resize().
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "policy/use_rates.h"
#include "policy/winner_tree.h"

namespace stagehand::policy {

class MemberCache {
public:
    static constexpr uint32_t kNone = UINT32_MAX;

    struct Place {
        uint32_t slot = 0;
        bool hit = false;          // the member had the slot before. Otherwise it has to be loaded
        uint32_t evicted = kNone;  // the member that had the slot before
    };

    // Members are numbered through: `width` of each group.
    MemberCache(uint32_t groups, uint32_t width, uint32_t slots);
    // Slots that go are empty. Allocates if there are more than ever before.
    void resize(uint32_t slots);

    // A call of the group needs these members, all of the group. Those that have a slot keep it until use(), or until
    // the next call. Counts their uses.
    void begin_call(uint32_t group, std::span<const uint32_t> members);

    // Gives the member a slot and holds it. Nothing if the other slots are all held or needed. A call that needs more
    // members than there are slots has to release some before it uses the others.
    std::optional<Place> use(uint32_t member);
    // The member keeps its slot until it is released as often as it was held.
    void hold(uint32_t member);
    void release(uint32_t member);

    // A later call needs the member with this probability. Gives the member a slot if there is one whose member is
    // worth less. A member that has a slot is worth so much until its group's next call. Only the caller knows whether
    // the link has time for a load that may be in vain.
    std::optional<Place> guess(uint32_t member, double probability);
    // Whether guess() would give it one.
    bool is_worth(uint32_t member, double probability) const;

    // The slot is empty, because the load of its member failed. Nothing happens if the member has no slot.
    void drop(uint32_t member);

    bool has_empty() const { return !empty_.empty(); }
    uint32_t slots() const { return static_cast<uint32_t>(member_in_.size()); }
    uint32_t slot_of(uint32_t member) const { return members_[member].slot; }  // kNone: not on the device
    uint32_t member_in(uint32_t slot) const { return member_in_[slot]; }       // kNone: empty
    // The member that goes next. Nothing if all are held or needed.
    std::optional<uint32_t> victim() const { return next_uses_.winner(); }

    // See UseRates. The planner compares these with the one use a step of each block in the order.
    double value(uint32_t member) const { return rates_.value(member); }

private:
    struct Member {
        uint32_t slot = kNone;
        uint32_t holds = 0;
        bool needed = false;
        double next_use = 0;  // when it is expected, in calls
    };

    double next_use(uint32_t member, double value) const;
    double rank(const Member& member) const;
    double expected(uint32_t member, double probability) const;
    void rerank(uint32_t member) { next_uses_.set(member, rank(members_[member])); }
    void foresee(uint32_t group);
    void visit_one_group();
    std::optional<Place> place(uint32_t member);  // the caller ranks the member

    UseRates rates_;
    std::vector<Member> members_;
    WinnerTree next_uses_;             // of the members that may be evicted
    std::vector<uint32_t> member_in_;  // by slot
    std::vector<uint32_t> empty_;      // slots
    std::vector<uint32_t> needed_;     // members of the call in hand
    std::vector<uint64_t> called_;     // by group: the number of its latest call
    uint64_t calls_ = 0;
    uint32_t visited_ = 0;  // the group that is looked at next
};

}  // namespace stagehand::policy
