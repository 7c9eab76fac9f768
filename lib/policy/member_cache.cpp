#include "policy/member_cache.h"

#include <algorithm>

namespace stagehand::policy {
namespace {

// A group that has not been called for so many rounds over all groups counts as called without uses. Else members that
// once were used often would keep their slots for ever.
constexpr uint64_t kRoundsAway = 2;

}  // namespace

MemberCache::MemberCache(uint32_t groups, uint32_t width, uint32_t slots)
    : rates_(groups, width),
      members_(size_t{groups} * width),
      next_uses_(groups * width),
      member_in_(slots, kNone),
      called_(groups) {
    needed_.reserve(width);
    empty_.reserve(slots);
    for (uint32_t slot = slots; slot-- > 0;) empty_.push_back(slot);
}

void MemberCache::resize(uint32_t slots) {
    empty_.reserve(slots);
    member_in_.reserve(slots);
    std::erase_if(empty_, [&](uint32_t slot) { return slot >= slots; });
    for (uint32_t slot = slots; slot-- > this->slots();) empty_.push_back(slot);
    member_in_.resize(slots, kNone);
}

// A member of value v is used in one of 1 / v calls of its group, which are as far apart as there are groups.
double MemberCache::next_use(uint32_t member, double value) const {
    return static_cast<double>(called_[member / rates_.width()]) + rates_.groups() / value;
}

double MemberCache::rank(const Member& member) const {
    return member.slot == kNone || member.holds || member.needed ? WinnerTree::kOut : member.next_use;
}

// Takes new values of the group's members into account.
void MemberCache::foresee(uint32_t group) {
    called_[group] = calls_;
    const uint32_t first = group * rates_.width(), last = first + rates_.width() - 1;
    for (uint32_t member = first; member <= last; member++) {
        members_[member].next_use = next_use(member, rates_.value(member));
        next_uses_.put(member, rank(members_[member]));
    }
    next_uses_.update(first, last);
}

void MemberCache::visit_one_group() {
    if (calls_ - called_[visited_] > kRoundsAway * rates_.groups()) {
        rates_.pass(visited_);
        foresee(visited_);
    }
    visited_ = (visited_ + 1) % rates_.groups();
}

void MemberCache::begin_call(uint32_t group, std::span<const uint32_t> members) {
    for (const uint32_t member : needed_) {
        if (!members_[member].needed) continue;
        members_[member].needed = false;
        rerank(member);
    }
    needed_.clear();
    calls_++;
    for (const uint32_t member : members) {
        if (members_[member].needed) continue;
        members_[member].needed = true;
        needed_.push_back(member);
    }
    rates_.count(group, members);
    foresee(group);
    visit_one_group();
}

std::optional<MemberCache::Place> MemberCache::place(uint32_t member) {
    if (const uint32_t slot = members_[member].slot; slot != kNone) return Place{slot, true, kNone};
    Place place;
    if (!empty_.empty()) {
        place.slot = empty_.back();
        empty_.pop_back();
    } else {
        const auto evicted = victim();
        if (!evicted) return std::nullopt;
        place.evicted = *evicted;
        place.slot = members_[*evicted].slot;
        members_[*evicted].slot = kNone;
        rerank(*evicted);
    }
    member_in_[place.slot] = member;
    members_[member].slot = place.slot;
    return place;
}

std::optional<MemberCache::Place> MemberCache::use(uint32_t member) {
    const auto found = place(member);
    if (!found) return std::nullopt;
    members_[member].needed = false;  // the hold protects it from now on
    hold(member);
    return found;
}

void MemberCache::hold(uint32_t member) {
    members_[member].holds++;
    rerank(member);
}

void MemberCache::release(uint32_t member) {
    if (members_[member].holds == 0) return;
    members_[member].holds--;
    rerank(member);
}

double MemberCache::expected(uint32_t member, double probability) const {
    return next_use(member, std::min(1.0, std::max(probability, rates_.value(member))));
}

bool MemberCache::is_worth(uint32_t member, double probability) const {
    if (!(probability > 0)) return false;
    if (members_[member].slot != kNone || has_empty()) return true;
    const auto worst = victim();
    return worst && next_uses_.rank(*worst) > expected(member, probability);
}

std::optional<MemberCache::Place> MemberCache::guess(uint32_t member, double probability) {
    if (!is_worth(member, probability)) return std::nullopt;
    const auto found = place(member);
    if (!found) return std::nullopt;
    members_[member].next_use = std::min(members_[member].next_use, expected(member, probability));
    rerank(member);
    return found;
}

void MemberCache::drop(uint32_t member) {
    Member& dropped = members_[member];
    if (dropped.slot == kNone) return;
    member_in_[dropped.slot] = kNone;
    empty_.push_back(dropped.slot);
    dropped.slot = kNone;
    rerank(member);
}

}  // namespace stagehand::policy
