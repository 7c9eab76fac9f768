#include "core/plan/sequence.h"

namespace stagehand::core {

Sequence::Sequence(std::vector<Entry> entries, size_t units, uint32_t number)
    : first_(units + 1), positions_(entries.size()), begins_ns_(entries.size() + 1), number_(number) {
    for (const Entry& entry : entries) first_[entry.unit + 1]++;
    for (size_t i = 0; i < units; i++) first_[i + 1] += first_[i];
    std::vector<uint32_t> next(first_.begin(), first_.end() - 1);
    for (size_t i = 0; i < entries.size(); i++) positions_[next[entries[i].unit]++] = static_cast<uint32_t>(i);
    entries_ = std::move(entries);
    sum_times();
}

void Sequence::sum_times() noexcept {
    for (size_t i = 0; i < entries_.size(); i++) begins_ns_[i + 1] = begins_ns_[i] + entries_[i].compute_ns;
}

uint64_t Sequence::next_use(uint32_t unit, uint64_t from) const {
    if (!contains(unit)) return UINT64_MAX;
    const auto begin = positions_.begin() + first_[unit], end = positions_.begin() + first_[unit + 1];
    const uint64_t lap = from / size() * size();
    const auto next = std::lower_bound(begin, end, static_cast<uint32_t>(from - lap));
    return next != end ? lap + *next : lap + size() + *begin;
}

bool Sequence::begins_as(const std::vector<Entry>& record) const {
    if (record.empty() || record.size() > entries_.size()) return false;
    const Entry& there = entries_[record.size() - 1];
    return there.unit == record.back().unit && there.uses >= record.back().uses &&
           std::equal(record.begin(), record.end() - 1, entries_.begin(),
                      [](const Entry& x, const Entry& y) { return x.is_like(y); });
}

}  // namespace stagehand::core
