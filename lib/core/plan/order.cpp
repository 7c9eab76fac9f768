#include "core/plan/order.h"

namespace stagehand::core {

void Order::exchange(Sequence& other) noexcept {
    std::swap(followed_, other);
    position_.restart();
}

void Order::replace(Sequence sequence) noexcept {
    exchange(sequence);
    aside_.clear();
}

void Order::set(std::vector<Entry> entries, size_t units, bool given, uint32_t number) {
    replace({std::move(entries), units, number});
    others_.clear();
    given_ = given;
}

void Order::add(std::vector<Entry> entries, size_t units, uint32_t number) {
    others_.emplace_back(std::move(entries), units, number);
    exchange(others_.back());
}

bool Order::follow(uint32_t number) noexcept {
    if (number == followed_.number() || !known()) return false;
    const auto there = std::ranges::find(others_, number, &Sequence::number);
    if (there == others_.end()) return false;
    exchange(*there);
    return true;
}

std::optional<uint32_t> Order::find(const std::vector<Entry>& entries) const {
    if (known() && Sequence::same(followed_.entries(), entries)) return followed_.number();
    for (const Sequence& other : others_)
        if (Sequence::same(other.entries(), entries)) return other.number();
    return std::nullopt;
}

bool Order::recognise(const std::vector<Entry>& record) noexcept {
    const auto there = std::ranges::find_if(others_, [&](const Sequence& other) { return other.begins_as(record); });
    if (there == others_.end()) return false;
    exchange(*there);
    position_.restart_after(record, followed_);
    return true;
}

void Order::clear() noexcept {
    followed_ = {};
    position_.restart();
    given_ = false;
    aside_.clear();
    others_.clear();
}

void Order::set_aside() noexcept {
    const uint32_t number = followed_.number();
    std::vector<Entry> entries = std::move(followed_).take_entries();
    clear();
    aside_ = std::move(entries);
    aside_number_ = number;
}

bool Order::take_up(size_t units) {
    if (known() || aside_.empty()) return false;
    set(std::vector<Entry>(aside_), units, false, aside_number_);
    return true;
}

}  // namespace stagehand::core
