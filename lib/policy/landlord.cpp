#include "policy/landlord.h"

#include <algorithm>
#include <cmath>
#include <utility>

namespace stagehand::policy {

void Landlord::expect(Id id) {
    Block& block = blocks_[id];
    if (block.resident || !block.place.empty()) return;
    Ranks one;
    block.place = one.extract(one.insert(rank(id, block)).first);
}

void Landlord::insert(Id id, uint64_t bytes, double cost) {
    expect(id);
    Block& block = blocks_[id];
    if (!block.resident) {
        block.resident = true;
        block.bytes = bytes;
        block.cost = cost;
        resident_++;
        bytes_ += bytes;
    } else if (block.held == 0) {
        rank_out(id, block);
    }
    count_use(block);
    restore_credit(id, block);
}

void Landlord::touch(Id id) {
    Block& block = blocks_[id];
    if (block.resident && block.held == 0) rank_out(id, block);
    count_use(block);
    if (block.resident) restore_credit(id, block);
}

void Landlord::hold(Id id) {
    auto found = blocks_.find(id);
    if (found == blocks_.end() || !found->second.resident) return;
    if (found->second.held++ == 0) rank_out(id, found->second);
}

void Landlord::release(Id id) {
    auto found = blocks_.find(id);
    if (found == blocks_.end() || found->second.held == 0) return;
    if (--found->second.held == 0) rank_in(id, found->second);
}

std::optional<Landlord::Id> Landlord::victim() const {
    if (evictable_.empty()) return std::nullopt;
    return evictable_.begin()->id;
}

void Landlord::evict(Id id) {
    auto found = blocks_.find(id);
    if (found == blocks_.end() || !found->second.resident) return;
    rent_ = std::max(rent_, found->second.credit);
    leave(id, found->second);
}

void Landlord::forget(Id id) {
    auto found = blocks_.find(id);
    if (found == blocks_.end()) return;
    if (found->second.resident) leave(id, found->second);
    blocks_.erase(found);
}

double Landlord::uses(Id id) const {
    auto found = blocks_.find(id);
    return found == blocks_.end() ? 0 : aged_uses(found->second);
}

double Landlord::aged_uses(const Block& block) const {
    return std::ldexp(block.uses, -static_cast<int>(std::min<uint64_t>(age_ - block.counted_in, 1000)));
}

void Landlord::count_use(Block& block) {
    if (++uses_in_age_ > 8 * blocks_.size()) {
        uses_in_age_ = 1;
        age_++;
    }
    block.uses = aged_uses(block) + 1;
    block.counted_in = age_;
    block.last_use = ++clock_;
}

void Landlord::restore_credit(Id id, Block& block) {
    block.credit = rent_ + block.uses * block.cost / static_cast<double>(std::max<uint64_t>(1, block.bytes));
    if (block.held == 0) rank_in(id, block);
}

void Landlord::rank_in(Id id, Block& block) {
    block.place.value() = rank(id, block);
    evictable_.insert(std::move(block.place));
}

void Landlord::rank_out(Id id, Block& block) { block.place = evictable_.extract(rank(id, block)); }

void Landlord::leave(Id id, Block& block) {
    if (block.held == 0) rank_out(id, block);
    block.held = 0;
    block.resident = false;
    resident_--;
    bytes_ -= block.bytes;
}

}  // namespace stagehand::policy
