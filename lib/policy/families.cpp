#include "families.h"

#include <algorithm>
#include <cmath>

namespace stagehand::policy {

PartsMaker::PartsMaker(const Shape& shape) : shape_(shape), parts_(shape.pages.size()) {
    std::vector<uint32_t> uses(shape.pages.size());
    for (const Use& use : shape.problem->trace) uses[use.unit]++;
    const double pages_per_ns = shape.problem->link_bytes_per_ns / static_cast<double>(shape.problem->page_bytes);
    link_pages_.reserve(shape.order.size());
    for (uint32_t u : shape.order) link_pages_.push_back(shape.unit_compute_ns[u] / uses[u] * pages_per_ns);
    lines_.resize(shape.order.size());
    most_.resize(shape.order.size());
}

std::optional<std::vector<uint32_t>> PartsMaker::make(Family family, uint64_t streamed, uint32_t cap) {
    const bool whole_family = family == Family::whole_units;
    uint64_t available = 0;
    for (size_t k = 0; k < most_.size(); k++) {
        uint32_t u = shape_.order[k];
        bool whole = whole_family || shape_.problem->units[u].whole;
        most_[k] = whole && shape_.pages[u] > cap ? 0 : std::min(shape_.pages[u], cap);
        available += most_[k];
    }
    if (available < streamed) return std::nullopt;
    draw_lines(family);
    round_parts(level_for(streamed), whole_family);
    uint64_t sum = 0;
    for (uint32_t u : shape_.order) sum += parts_[u];
    if (sum < streamed) {
        grow(streamed - sum);
        sum = 0;
        for (uint32_t u : shape_.order) sum += parts_[u];
    }
    if (sum > streamed && !whole_family) shrink(sum - streamed);
    return parts_;
}

void PartsMaker::draw_lines(Family family) {
    for (size_t k = 0; k < lines_.size(); k++) {
        uint32_t u = shape_.order[k];
        switch (family) {
            case Family::level: lines_[k] = {1, 0}; break;
            case Family::complement: lines_[k] = {1, link_pages_[k] / 2}; break;
            case Family::complement_full: lines_[k] = {1, link_pages_[k]}; break;
            case Family::by_size: lines_[k] = {static_cast<double>(shape_.pages[u]), 0}; break;
            // A unit without compute still takes a little, or the level would have no end.
            case Family::by_compute:
            case Family::whole_units: lines_[k] = {link_pages_[k] + 1e-3, 0}; break;
        }
    }
}

// The level at which the parts add up to `streamed`: Newton's method on a sum of clipped lines, inside a bracket.
double PartsMaker::level_for(uint64_t streamed) const {
    double low = 0, high = 0;
    for (size_t k = 0; k < lines_.size(); k++)
        high = std::max(high, (most_[k] + lines_[k].less) / lines_[k].slope);
    double level = high / 2;
    for (int round = 0; round < 60; round++) {
        double sum = 0, slope = 0;
        for (size_t k = 0; k < lines_.size(); k++) {
            double part = lines_[k].slope * level - lines_[k].less;
            bool inside = part > 0 && part < most_[k];
            sum += inside ? part : part > 0 ? most_[k] : 0;
            slope += inside ? lines_[k].slope : 0;
        }
        double off = sum - static_cast<double>(streamed);
        if (std::fabs(off) < 0.25) break;
        (off > 0 ? high : low) = level;
        double next = slope > 0 ? level - off / slope : low;
        level = next > low && next < high ? next : low + (high - low) / 2;
    }
    return level;
}

// Rounds to pages, and to nothing or all where a unit is not divided, so that the sum up to any use stays right.
void PartsMaker::round_parts(double level, bool indivisible) {
    double owed = 0;
    for (size_t k = 0; k < lines_.size(); k++) {
        uint32_t u = shape_.order[k];
        owed += std::clamp(lines_[k].slope * level - lines_[k].less, 0.0, static_cast<double>(most_[k]));
        uint32_t part = 0;
        if (indivisible || shape_.problem->units[u].whole)
            part = most_[k] && owed >= most_[k] / 2.0 ? most_[k] : 0;
        else
            part = static_cast<uint32_t>(std::clamp(std::floor(owed + 1e-6), 0.0, static_cast<double>(most_[k])));
        parts_[u] = part;
        owed -= part;
    }
}

void PartsMaker::grow(uint64_t missing) {
    auto divisible = [&](uint32_t u) { return !shape_.problem->units[u].whole; };
    for (;;) {
        uint64_t with_room = 0;
        for (size_t k = 0; k < most_.size(); k++) {
            uint32_t u = shape_.order[k];
            with_room += divisible(u) && parts_[u] < most_[k];
        }
        if (missing == 0 || with_room == 0) break;
        for (size_t k = 0; k < most_.size() && missing; k++) {
            uint32_t u = shape_.order[k];
            if (!divisible(u) || parts_[u] >= most_[k]) continue;
            uint64_t share = (missing + with_room - 1) / with_room;
            with_room--;
            uint32_t more = static_cast<uint32_t>(std::min<uint64_t>(share, most_[k] - parts_[u]));
            parts_[u] += more;
            missing -= more;
        }
    }
    for (size_t k = 0; k < most_.size() && missing; k++) {
        uint32_t u = shape_.order[k];
        if (parts_[u] || most_[k] == 0 || shape_.pages[u] > missing) continue;
        parts_[u] = shape_.pages[u];
        missing -= shape_.pages[u];
    }
    if (missing == 0) return;
    const uint32_t* smallest = nullptr;  // of the units left, all of which are larger than what is missing
    for (size_t k = 0; k < most_.size(); k++) {
        const uint32_t& u = shape_.order[k];
        if (parts_[u] == 0 && most_[k] && (!smallest || shape_.pages[u] < shape_.pages[*smallest])) smallest = &u;
    }
    if (smallest) parts_[*smallest] = shape_.pages[*smallest];
}

void PartsMaker::shrink(uint64_t surplus) {
    uint64_t divisible = 0;
    for (uint32_t u : shape_.order) divisible += !shape_.problem->units[u].whole && parts_[u];
    for (uint32_t u : shape_.order) {
        if (surplus == 0 || divisible == 0) return;
        if (shape_.problem->units[u].whole || parts_[u] == 0) continue;
        uint64_t share = (surplus + divisible - 1) / divisible;
        divisible--;
        uint32_t less = static_cast<uint32_t>(std::min<uint64_t>(share, parts_[u]));
        parts_[u] -= less;
        surplus -= less;
    }
}

uint32_t PartsMaker::cap_for(uint32_t ring) const {
    if (shape_.held == 1) return ring;
    std::vector<uint32_t> capped(shape_.pages.size());
    auto fits = [&](uint32_t cap) {
        for (uint32_t u : shape_.order)
            capped[u] = shape_.problem->units[u].whole && shape_.pages[u] > cap ? 0 : std::min(shape_.pages[u], cap);
        return widest_window(shape_, capped).pages <= ring;
    };
    uint32_t fitting = 0, above = ring + 1;
    while (above - fitting > 1) {
        uint32_t middle = fitting + (above - fitting) / 2;
        (fits(middle) ? fitting : above) = middle;
    }
    return fitting;
}

}  // namespace stagehand::policy
