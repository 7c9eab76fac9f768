#include "core/plan/position.h"

namespace stagehand::core {

void Position::restart_after(const std::vector<Sequence::Entry>& record, const Sequence& sequence) noexcept {
    restart();
    if (record.empty()) return;
    const size_t last = record.size() - 1;
    const bool over = record[last].uses == sequence.entries()[last].uses;
    cursor_ = over ? last + 1 : last;
    arrived_ = over ? 0 : record[last].uses;
}

void Position::to_edge(const Sequence& sequence) noexcept {
    deviated_ = false;
    arrived_ = 0;
    if (!sequence.empty()) cursor_ = (cursor_ + sequence.size() - 1) / sequence.size() * sequence.size();
}

bool Position::arrive(const Sequence& sequence, uint32_t unit) noexcept {
    if (sequence.at(cursor_).unit != unit) {
        // Used once more than expected.
        if (arrived_ == 0 && cursor_ > 0 && sequence.at(cursor_ - 1).unit == unit) return true;
        deviated_ = true;
        const uint64_t position = sequence.next_use(unit, cursor_);
        if (position == UINT64_MAX) return false;
        cursor_ = position;
        arrived_ = 0;
    }
    if (++arrived_ < sequence.at(cursor_).uses) return true;
    cursor_++;
    arrived_ = 0;
    return true;
}

}  // namespace stagehand::core
