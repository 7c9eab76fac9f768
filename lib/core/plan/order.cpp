#include "core/plan/order.h"

#include <algorithm>

#include "base/no_throw.h"

namespace stagehand::core {

Order::Other Order::make(std::vector<Entry> entries, size_t units) {
    Other made;
    made.first.resize(units + 1);
    made.positions.resize(entries.size());
    made.begins_ns.resize(entries.size() + 1);
    for (const Entry& entry : entries) made.first[entry.unit + 1]++;
    for (size_t i = 0; i < units; i++) made.first[i + 1] += made.first[i];
    std::vector<uint32_t> next(made.first.begin(), made.first.end() - 1);
    for (size_t i = 0; i < entries.size(); i++) made.positions[next[entries[i].unit]++] = static_cast<uint32_t>(i);
    made.entries = std::move(entries);
    sum_times(made.entries, made.begins_ns);
    return made;
}

void Order::exchange(Other& other) noexcept {
    std::swap(entries_, other.entries);
    std::swap(first_, other.first);
    std::swap(positions_, other.positions);
    std::swap(begins_ns_, other.begins_ns);
    std::swap(number_, other.number);
    cursor_ = arrived_ = 0;
    deviated_ = false;
}

void Order::replace(std::vector<Entry> entries, size_t units) {
    Other made = make(std::move(entries), units);
    // Nothing fails from here on.
    made.number = number_;
    exchange(made);
    aside_.clear();
}

void Order::set(std::vector<Entry> entries, size_t units, bool given, uint32_t number) {
    replace(std::move(entries), units);
    others_.clear();
    given_ = given;
    number_ = number;
}

void Order::add(std::vector<Entry> entries, size_t units, uint32_t number) {
    Other made = make(std::move(entries), units);
    made.number = number;
    others_.push_back(std::move(made));
    exchange(others_.back());
}

bool Order::follow(uint32_t number) noexcept {
    if (number == number_ || !known()) return false;
    for (Other& other : others_) {
        if (other.number != number) continue;
        exchange(other);
        return true;
    }
    return false;
}

// The last entry of the record has just come, and its uses may not be complete.
bool Order::recognise() noexcept {
    if (!recording_ || recorded_.empty()) return false;
    const size_t at = recorded_.size() - 1;
    for (Other& other : others_) {
        if (other.entries.size() <= at || other.entries[at].unit != recorded_[at].unit ||
            other.entries[at].uses < recorded_[at].uses)
            continue;
        const bool begins_so =
            std::equal(recorded_.begin(), recorded_.end() - 1, other.entries.begin(),
                       [](const Entry& x, const Entry& y) { return x.unit == y.unit && x.uses == y.uses; });
        if (!begins_so) continue;
        exchange(other);
        const bool over = recorded_[at].uses == entries_[at].uses;
        cursor_ = over ? at + 1 : at;
        arrived_ = over ? 0 : recorded_[at].uses;
        return true;
    }
    return false;
}

std::vector<uint32_t> Order::units() const {
    std::vector<uint32_t> units;
    size_t most = first_.size();
    for (const Other& other : others_) most = std::max(most, other.first.size());
    for (uint32_t unit = 0; unit + 1 < most; unit++)
        if (contains(unit)) units.push_back(unit);
    return units;
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
    if (!contains(first_, unit)) return UINT64_MAX;
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
    others_.clear();
    number_ = 0;
}

void Order::set_aside() noexcept {
    std::vector<Entry> entries = std::move(entries_);
    const uint32_t number = number_;
    clear();
    aside_ = std::move(entries);
    aside_number_ = number;
}

bool Order::take_up(size_t units) {
    if (known() || aside_.empty()) return false;
    set(std::vector<Entry>(aside_), units, false, aside_number_);
    return true;
}

const std::vector<Order::Entry>& Order::recorded() const {
    static const std::vector<Entry> none;
    return recorded_.size() < kLongest ? recorded_ : none;
}

}  // namespace stagehand::core
