#include "core/plan/set_pools.h"

#include <algorithm>

#include "base/no_throw.h"
#include "base/size_text.h"
#include "core/plan/drop_unit.h"
#include "policy/division.h"

namespace stagehand::core {

uint32_t SetPools::next(bool may_reuse) const {
    const auto free = may_reuse ? std::ranges::find(sets_, kNone, &Set::pool) : sets_.end();
    return static_cast<uint32_t>(free - sets_.begin());
}

Status SetPools::add(const Block& pool, std::span<const sh_block> members, const SetShape& shape) {
    return no_throw([&] {
        const uint32_t number = memory_.registry.unit(pool.unit).part.set;
        Set set(static_cast<uint32_t>(members.size()) / shape.group_members, shape.group_members);
        set.pool = pool.unit;
        set.stride = shape.stride;
        for (const sh_block id : members) set.members.push_back(memory_.registry.find(id)->unit);
        set.wanted.resize(members.size());
        if (number == sets_.size()) sets_.emplace_back();
        sets_[number] = std::move(set);
        for (uint32_t i = 0; i < members.size(); i++) memory_.registry.unit(sets_[number].members[i]).member = i;
        return Status();
    });
}

void SetPools::forget(const Unit& unit) {
    Set& set = sets_[unit.part.set];
    if (unit.is_pool()) set = Set();
    if (set.pool == kNone) return;  // the set has gone with the member
    set.members[unit.member] = kNone;
}

Status SetPools::find(sh_set set, const Unit** out) {
    const Block* const block = memory_.registry.find(set ^ kHandleBit);
    if (!block || !memory_.registry.unit(block->unit).is_pool())
        return Status(SH_ERROR_INVALID_HANDLE, "set: the runtime has no such set");
    *out = &memory_.registry.unit(block->unit);
    return Status();
}

Status SetPools::blocks_of(const Unit& pool, std::span<const uint32_t> members, std::vector<sh_block>* out) {
    const Set& set = sets_[pool.part.set];
    out->clear();
    out->reserve(members.size());
    for (const uint32_t member : members) {
        if (member >= set.members.size())
            return Status(SH_ERROR_INVALID_ARGUMENT, memory_.registry.name_of(pool) + " has no member " +
                                                         std::to_string(member) + ": its " +
                                                         std::to_string(set.members.size()) + " count from 0");
        if (set.members[member] == kNone)
            return Status(SH_ERROR_INVALID_HANDLE, "member " + std::to_string(member) + " of " +
                                                       memory_.registry.name_of(pool) + " was unregistered");
        const Unit& unit = memory_.registry.unit(set.members[member]);
        out->push_back(memory_.registry.block(unit.first_block).id);
    }
    return Status();
}

std::vector<sh_block> SetPools::blocks_of(const Unit& pool) const {
    std::vector<sh_block> blocks;
    for (const uint32_t index : sets_[pool.part.set].members)
        if (index != kNone) blocks.push_back(memory_.registry.block(memory_.registry.unit(index).first_block).id);
    return blocks;
}

uint64_t SetPools::address_of(const Set& set, uint32_t slot) const {
    return memory_.registry.unit(set.pool).address + slot * set.stride;
}

uint32_t SetPools::slot_of(const Unit& member) const {
    const Set& set = sets_[member.part.set];
    return static_cast<uint32_t>((member.address - memory_.registry.unit(set.pool).address) / set.stride);
}

void SetPools::describe(const Unit& pool, sh_set_info* out) const {
    const Set& set = sets_[pool.part.set];
    out->address = set.cache.slots() == 0 ? nullptr : reinterpret_cast<void*>(pool.address);
    out->stride = set.stride;
    out->members = set.members.size();
    out->slots = set.cache.slots();
    out->uses = out->hits = 0;
    for (const telemetry::GroupReading& group : set.groups) {
        out->uses += group.uses;
        out->hits += group.hits;
    }
    out->evictions = set.evictions;
}

std::vector<telemetry::SetReading> SetPools::readings() const {
    std::vector<telemetry::SetReading> readings;
    for (const Set& set : sets_) {
        if (set.pool == kNone) continue;
        const Unit& pool = memory_.registry.unit(set.pool);
        const Block& block = memory_.registry.block(pool.first_block);
        telemetry::SetReading& reading = readings.emplace_back();
        reading.set = handle_of(block.id);
        if (block.detail) reading.name = block.detail->name;
        describe(pool, &reading.info);
        reading.groups = set.groups;
    }
    return readings;
}

void SetPools::fill(const Unit& pool, sh_set set, uint32_t view_flags, sh_view* out) const {
    const Set& at = sets_[pool.part.set];
    const uint32_t size = out->struct_size;
    *out = {size, view_flags, set, reinterpret_cast<void*>(pool.address), at.cache.slots() * at.stride, 0};
}

Status SetPools::too_few(const Unit& pool, std::span<const uint32_t> members, Status held) const {
    const Set& set = sets_[pool.part.set];
    std::vector<uint32_t> distinct(members.begin(), members.end());
    std::ranges::sort(distinct);
    distinct.erase(std::unique(distinct.begin(), distinct.end()), distinct.end());
    if (distinct.size() <= set.cache.slots()) return held;
    const std::string more = exact_size_text((distinct.size() - set.cache.slots()) * set.stride) +
                             " more, and tell sh_set_options.call_members";
    return Status(SH_ERROR_BUDGET, "a call needs " + std::to_string(distinct.size()) + " members of " +
                                       memory_.registry.name_of(pool) + " at once, but its pool has " +
                                       std::to_string(set.cache.slots()) + " slots: use fewer at once, or " +
                                       (distinct.size() > pool.bytes / set.stride ? "create the set with more slots"
                                                                                  : "give the runtime " + more));
}

SetPools::Call::Call(SetPools& pools, const Unit& pool, std::span<const uint32_t> members)
    : pools_(pools), set_(pool.part.set), members_(members) {
    Set& set = pools_.sets_[set_];
    // As a rule there is one group. The holds protect the members of all.
    for (size_t i = 0, end = 0; i < members_.size(); i = end) {
        const uint32_t group = members_[i] / set.width;
        while (end < members_.size() && members_[end] / set.width == group) end++;
        set.cache.begin_call(group, members_.subspan(i, end - i));
    }
    for (const uint32_t member : members_) {
        set.wanted[member]++;
        set.cache.hold(member);
        telemetry::GroupReading& group = set.groups[member / set.width];
        group.uses++;
        group.hits += pools_.memory_.registry.unit(set.members[member]).complete();
    }
}

SetPools::Call::~Call() {
    Set& set = pools_.sets_[set_];
    if (set.pool == kNone) return;  // it was unregistered while the call waited
    for (const uint32_t member : members_) {
        set.wanted[member]--;
        set.cache.release(member);
    }
}

uint64_t SetPools::pages() const {
    uint64_t pages = 0;
    for (const Set& set : sets_)
        if (set.pool != kNone) pages += memory_.registry.unit(set.pool).own.size();
    return pages;
}

uint64_t SetPools::least_pages() const {
    uint64_t pages = 0;
    for (const Set& set : sets_)
        if (set.pool != kNone) pages += memory_.registry.unit(set.pool).part.pool_pages;
    return pages;
}

uint64_t SetPools::most_pages() const {
    uint64_t pages = 0;
    for (const Set& set : sets_)
        if (set.pool != kNone) pages += memory_.registry.unit(set.pool).pages;
    return pages;
}

// Of a member, or of a pool with all its members.
Status SetPools::drop(Unit& unit, std::unique_lock<std::mutex>& lock) {
    return unit.is_pool() ? resize(sets_[unit.part.set], 0, lock) : drop_member(unit, lock);
}

// The member's slot gets no other member now, so all its uses must have ended.
Status SetPools::drop_member(Unit& member, std::unique_lock<std::mutex>& lock) {
    return drop_unit(
        member, memory_, loader_, write_back_, lock, [] { return true; },
        [&] { return leave(set_of(member), member), Status(); });
}

void SetPools::leave(Set& set, Unit& member) {
    if (member.protections) unpin(member);
    set.cache.drop(member.member);
    memory_.placement.leave_slot(member);
}

Status SetPools::resize(uint64_t pages, std::unique_lock<std::mutex>& lock) {
    std::vector<policy::Stake> stakes;
    std::vector<uint32_t> sets;
    for (uint32_t i = 0; i < sets_.size(); i++) {
        if (sets_[i].pool == kNone) continue;
        const Unit& pool = pool_of(sets_[i]);
        stakes.push_back({pool.part.pool_pages, pool.pages, 0, {}});
        sets.push_back(i);
    }
    // Without room for all, none has any.
    const auto divided = policy::divide_by_value(pages, stakes);
    const auto share = [&](size_t k) { return divided ? static_cast<uint32_t>((*divided)[k]) : 0; };
    // Some give pages back before others take them.
    for (size_t k = 0; k < sets.size(); k++)
        if (share(k) < pool_of(sets_[sets[k]]).own.size()) SH_TRY(resize(sets_[sets[k]], share(k), lock));
    for (size_t k = 0; k < sets.size(); k++) SH_TRY(resize(sets_[sets[k]], share(k), lock));
    return Status();
}

Status SetPools::resize(Set& set, uint32_t pages, std::unique_lock<std::mutex>& lock) {
    Unit& pool = pool_of(set);
    const uint32_t now = static_cast<uint32_t>(pool.own.size());
    if (pages == now) return Status();
    const auto slots_in = [&](uint64_t count) {
        return static_cast<uint32_t>(std::min(count * memory_.registry.page_bytes(), pool.bytes) / set.stride);
    };
    const uint32_t stay = memory_.registry.maps_pages() ? slots_in(std::min(pages, now)) : 0;
    for (uint32_t slot = stay; slot < set.cache.slots(); slot++) {
        const uint32_t last = set.cache.member_in(slot);
        if (last == policy::MemberCache::kNone) continue;
        Unit& member = memory_.registry.unit(set.members[last]);
        SH_TRY(drop_member(member, lock));
        if (member.memory != Memory::none)
            return Status(SH_ERROR_HELD, memory_.registry.name_of(member) + " is held, and its slot has to go");
    }
    if (slots_in(pages) > set.cache.slots()) set.cache.resize(slots_in(pages));  // so that nothing fails afterwards
    Status status = memory_.placement.resize_pool(pool, pages);
    // There may be less memory than was granted, because others have still to give it back.
    const uint32_t least = std::max(pool.part.pool_pages, static_cast<uint32_t>(pool.own.size()));
    while (status.code() == SH_ERROR_OUT_OF_DEVICE_MEMORY && pages > least) {
        pages = least + (pages - least) / 2;
        status = memory_.placement.resize_pool(pool, pages);
    }
    set.cache.resize(slots_in(pool.own.size()));
    return status.code() == SH_ERROR_OUT_OF_DEVICE_MEMORY ? Status(SH_ERROR_BUDGET, status.text()) : status;
}

Status SetPools::no_slot(const Unit& member) {
    const Set& set = set_of(member);
    const Unit& pool = pool_of(set);
    if (set.cache.slots() == 0)
        return Status(SH_ERROR_BUDGET, memory_.registry.name_of(pool) + " needs " +
                                           exact_size_text(pool.part.pool_pages * memory_.registry.page_bytes()) +
                                           " for the members of one call, and has no memory");
    return Status(SH_ERROR_HELD, "all " + std::to_string(set.cache.slots()) + " slots of " +
                                     memory_.registry.name_of(pool) +
                                     " have members that are held, protected, or wanted by a call: use fewer at "
                                     "once, or create the runtime with larger unordered_bytes");
}

// Sees to it that the slot which the member would get can be written: it is empty, or nothing of its last member has to
// stay. Checks everything again after the mutex was given up. `chance`: of a guess; 0: the member is needed.
Status SetPools::clear_slot(Unit& member, double chance, std::unique_lock<std::mutex>& lock) {
    Set& set = set_of(member);
    for (;;) {
        if (chance > 0 && !set.cache.is_worth(member.member, chance)) return Status(SH_NOT_READY);
        if (set.cache.has_empty()) return Status();
        const auto victim = set.cache.victim();
        if (!victim) return no_slot(member);
        Unit& last = memory_.registry.unit(set.members[*victim]);
        if (last.load_queued())
            loader_.cancel(last, lock);
        else if (memory_.changes.is_changed(last) || !memory_.changes.has_landed(last))
            SH_TRY(write_back_.flush(last, lock));
        else
            return Status();
    }
}

void SetPools::enter(Set& set, Unit& member, const policy::MemberCache::Place& place) {
    if (place.evicted != policy::MemberCache::kNone) {
        Unit& last = memory_.registry.unit(set.members[place.evicted]);
        loader_.leave(last);
        memory_.placement.leave_slot(last);
        memory_.contents.take_turns(last, member);
        set.evictions++;
        stats_.evictions++;
    }
    memory_.placement.enter_slot(member, address_of(set, place.slot));
    if (member.protections) pin(member);  // until its protection ends
}

Status SetPools::place(Unit& member, std::unique_lock<std::mutex>& lock) {
    member.own.reserve(member.pages);  // so that nothing fails after a slot is taken
    SH_TRY(clear_slot(member, 0, lock));
    Set& set = set_of(member);
    enter(set, member, *set.cache.use(member.member));
    unpin(member);  // use() holds it
    return Status();
}

Status SetPools::guess(Unit& member, double chance, std::unique_lock<std::mutex>& lock) {
    member.own.reserve(member.pages);
    Set& set = set_of(member);
    if (member.memory == Memory::none) SH_TRY(clear_slot(member, chance, lock));
    const auto place = set.cache.guess(member.member, chance);
    if (place && !place->hit) enter(set, member, *place);
    return Status();
}

// A member that is acquired alone is a call by itself.
void SetPools::touch(const Unit& member) {
    Set& set = set_of(member);
    const uint32_t number = member.member;
    if (!set.wanted[number]) set.cache.begin_call(number / set.width, {&number, 1});
}

}  // namespace stagehand::core
