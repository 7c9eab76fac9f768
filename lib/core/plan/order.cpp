#include "core/plan/order.h"

#include <algorithm>

#include "base/no_throw.h"

namespace stagehand::core {

void Order::set(std::vector<Entry> entries, size_t units, bool given) {
    std::vector<uint32_t> first(units + 1), positions(entries.size());
    std::vector<uint64_t> begins_ns(entries.size() + 1);
    for (size_t i = 0; i < entries.size(); i++) begins_ns[i + 1] = begins_ns[i] + entries[i].compute_ns;
    for (const Entry& entry : entries) first[entry.unit + 1]++;
    for (size_t i = 0; i < units; i++) first[i + 1] += first[i];
    std::vector<uint32_t> next(first.begin(), first.end() - 1);
    for (size_t i = 0; i < entries.size(); i++) positions[next[entries[i].unit]++] = static_cast<uint32_t>(i);
    // Nothing fails from here on.
    entries_ = std::move(entries);
    aside_.clear();
    first_ = std::move(first);
    positions_ = std::move(positions);
    begins_ns_ = std::move(begins_ns);
    given_ = given;
    cursor_ = arrived_ = 0;
    deviated_ = false;
}

void Order::to_edge() {
    deviated_ = false;
    arrived_ = 0;
    if (known()) cursor_ = (cursor_ + size() - 1) / size() * size();
}

bool Order::arrive(uint32_t unit) {
    if (!known()) return false;
    if (at(cursor_).unit != unit) {
        if (arrived_ == 0 && cursor_ > 0 && at(cursor_ - 1).unit == unit) return true;  // used once more than expected
        deviated_ = true;
        const uint64_t position = next_use(unit, cursor_);
        if (position == UINT64_MAX) return false;
        cursor_ = position;
        arrived_ = 0;
    }
    if (++arrived_ < at(cursor_).uses) return true;
    cursor_++;
    arrived_ = 0;
    return true;
}

uint64_t Order::next_use(uint32_t unit, uint64_t from) const {
    if (!contains(unit)) return UINT64_MAX;
    const auto begin = positions_.begin() + first_[unit], end = positions_.begin() + first_[unit + 1];
    const uint64_t lap = from / size() * size();
    const auto next = std::lower_bound(begin, end, static_cast<uint32_t>(from - lap));
    return next != end ? lap + *next : lap + size() + *begin;
}

void Order::record_begin() {
    recording_ = true;
    recorded_.clear();
}

void Order::record(uint32_t unit) {
    if (!recording_) return;
    if (!recorded_.empty() && recorded_.back().unit == unit)
        recorded_.back().uses++;
    else if (recorded_.size() < kLongest && !no_throw([&] {
                                                 recorded_.push_back({unit, 0, 1});
                                                 return Status();
                                             }).ok())
        recording_ = false;  // an incomplete record is no order
}

void Order::record_end() { recording_ = false; }

void Order::clear() noexcept {
    entries_.clear();
    first_.clear();
    cursor_ = arrived_ = 0;
    given_ = deviated_ = false;
    aside_.clear();
}

void Order::set_aside() noexcept {
    std::vector<Entry> entries = std::move(entries_);
    clear();
    aside_ = std::move(entries);
}

bool Order::take_up(size_t units) {
    if (known() || aside_.empty()) return false;
    set(std::vector<Entry>(aside_), units, false);
    return true;
}

std::vector<Order::Entry> Order::learned() {
    const auto same = [](const std::vector<Entry>& a, const std::vector<Entry>& b) {
        return std::equal(a.begin(), a.end(), b.begin(), b.end(),
                          [](const Entry& x, const Entry& y) { return x.unit == y.unit && x.uses == y.uses; });
    };
    std::vector<Entry> result;
    const std::vector<Entry>& before = known() ? entries_ : aside_;
    const bool is_order = !recorded_.empty() && recorded_.size() < kLongest && !same(recorded_, before);
    if (is_order && (before.empty() || same(recorded_, previous_))) result = recorded_;
    previous_ = recorded_;
    return result;
}

}  // namespace stagehand::core
