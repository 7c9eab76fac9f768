#include "core/order.h"

#include <algorithm>

namespace stagehand::core {

void Order::set(std::vector<Entry> entries, size_t units, bool given) {
    entries_ = std::move(entries);
    given_ = given;
    cursor_ = 0;
    deviated_ = false;
    uint64_t sum = 0;
    for (const Entry& entry : entries_) sum += entry.compute_ns;
    mean_compute_ns_ = entries_.empty() ? 0 : sum / entries_.size();
    first_.assign(units + 1, 0);
    for (const Entry& entry : entries_) first_[entry.unit + 1]++;
    for (size_t i = 0; i < units; i++) first_[i + 1] += first_[i];
    positions_.resize(entries_.size());
    std::vector<uint32_t> next(first_.begin(), first_.end() - 1);
    for (size_t i = 0; i < entries_.size(); i++) positions_[next[entries_[i].unit]++] = static_cast<uint32_t>(i);
}

void Order::to_edge() {
    deviated_ = false;
    if (known()) cursor_ = (cursor_ + size() - 1) / size() * size();
}

bool Order::arrive(uint32_t unit) {
    if (!known()) return false;
    if (at(cursor_).unit == unit) {
        cursor_++;
        return true;
    }
    if (cursor_ > 0 && at(cursor_ - 1).unit == unit) return true;   // again, or another block of the same unit
    deviated_ = true;
    const uint64_t position = next_use(unit, cursor_);
    if (position == UINT64_MAX) return false;
    cursor_ = position + 1;
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
    recorded_ns_.clear();
}

void Order::record(uint32_t unit, uint64_t compute_ns) {
    if (!recording_) return;
    if (!recorded_.empty() && recorded_.back() == unit) {
        recorded_ns_.back() += compute_ns;
        return;
    }
    if (recorded_.size() >= kLongest) return;
    recorded_.push_back(unit);
    recorded_ns_.push_back(compute_ns);
}

void Order::record_end() { recording_ = false; }

std::vector<Order::Entry> Order::learned() {
    const bool same_as_now = recorded_.size() == entries_.size() &&
                             std::equal(recorded_.begin(), recorded_.end(), entries_.begin(),
                                        [](uint32_t unit, const Entry& entry) { return unit == entry.unit; });
    const bool twice = recorded_ == previous_;
    std::vector<Entry> result;
    if (!recorded_.empty() && recorded_.size() < kLongest && !same_as_now && (!known() || twice))
        for (size_t i = 0; i < recorded_.size(); i++) result.push_back({recorded_[i], recorded_ns_[i]});
    previous_ = recorded_;
    return result;
}

}  // namespace stagehand::core
