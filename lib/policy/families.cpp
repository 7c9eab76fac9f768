#include "policy/families.h"

#include <algorithm>
#include <cmath>

namespace stagehand::policy {

namespace {

constexpr double least_slope = 1e-3;  // pages

}  // namespace

PartsMaker::PartsMaker(const Shape& shape)
    : shape_(shape), uses_(shape.pages.size()), costs_(shape.pages.size()), parts_(shape.pages.size()) {
    for (const Use& use : shape.problem->trace) uses_[use.unit]++;
    // A page with gaps is copied in less time, and a page from a slow source in more.
    const double bytes_per_link_time =
        shape.total_link_time > 0 ? static_cast<double>(shape.total_bytes) / shape.total_link_time : 1;
    const double pages_per_ns =
        bytes_per_link_time * shape.problem->link_bytes_per_ns / static_cast<double>(shape.problem->page_bytes);
    link_pages_.reserve(shape.order.size());
    for (uint32_t u : shape.order) {
        link_pages_.push_back(shape.unit_compute_ns[u] / uses_[u] * pages_per_ns);
        costs_[u] = uses_[u] * shape.page_cost(u);
        uneven_costs_ = uneven_costs_ || costs_[u] != costs_[shape.order[0]];
    }
    most_.resize(shape.order.size());
    wanted_.resize(shape.order.size());
    if (!uneven_costs_) return;
    for (uint32_t k = 0; k < shape.order.size(); k++) by_cost_.push_back(k);
    std::stable_sort(by_cost_.begin(), by_cost_.end(),
                     [&](uint32_t a, uint32_t b) { return costs_[shape.order[a]] > costs_[shape.order[b]]; });
}

std::optional<std::vector<uint32_t>> PartsMaker::make(Family family, uint64_t streamed, uint32_t ring) {
    const bool whole_family = family == Family::whole_units;
    const uint32_t cap = cap_for(ring);
    uint64_t available = 0;
    for (size_t k = 0; k < most_.size(); k++) {
        uint32_t u = shape_.order[k];
        bool whole = whole_family || shape_.problem->units[u].whole;
        most_[k] = whole && shape_.pages[u] > cap ? 0 : std::min(shape_.pages[u], cap);
        available += most_[k];
    }
    if (available < streamed) return std::nullopt;
    if (family == Family::rare_level || family == Family::rare_paced) {
        spare_costly(available, streamed);
        family = family == Family::rare_level ? Family::level : Family::paced;
    }
    if (family == Family::tails)
        want_tails(streamed);
    else if (family == Family::few)
        want_few(streamed, cap);
    else if (family == Family::half_few)
        want_few(streamed, std::max(1.0, cap * (shape_.held / (shape_.held + 1.0))));
    else if (!find_level(family, streamed, ring))
        return std::nullopt;
    round_parts(whole_family);
    auto sum = [&] {
        uint64_t pages = 0;
        for (uint32_t u : shape_.order) pages += parts_[u];
        return pages;
    };
    uint64_t pages = sum();
    if (pages < streamed) {
        grow(streamed - pages);
        pages = sum();
    }
    if (pages > streamed && !whole_family) shrink(pages - streamed);
    return parts_;
}

// Every use of a unit may copy its part again. So the units that are used most often, and those with the slowest
// sources and the fewest gaps, stream nothing if the other parts are enough.
void PartsMaker::spare_costly(uint64_t available, uint64_t streamed) {
    for (uint32_t k : by_cost_) {
        if (costs_[shape_.order[k]] == costs_[shape_.order[by_cost_.back()]]) return;
        available -= most_[k];
        if (available < streamed) {
            // This unit streams what the rest cannot, unless it must be whole.
            if (!shape_.problem->units[shape_.order[k]].whole) most_[k] = static_cast<uint32_t>(streamed - available);
            return;
        }
        most_[k] = 0;
    }
}

// Sets what each unit wants at a level, and returns the sum.
double PartsMaker::want(Family family, double level, uint32_t ring) {
    const size_t count = most_.size();
    if (family != Family::filled && family != Family::paced) {
        double sum = 0;
        for (size_t k = 0; k < count; k++) {
            wanted_[k] = std::min(slope(family, k) * level, static_cast<double>(most_[k]));
            sum += wanted_[k];
        }
        return sum;
    }
    const double pace = family == Family::paced ? 1 : 0;
    // `time` is the number of pages that the link can copy before the compute reaches this unit, if the ring has room.
    double time = 0, sum = 0;
    const size_t warm_up = std::min<size_t>(count, 64);
    for (size_t k = count - warm_up; k < 2 * count; k++) {
        size_t place = k < count ? k : k - count;
        double room = ring - link_pages_[place];
        double most = std::min(static_cast<double>(most_[place]), std::max(0.0, room));
        double part = std::clamp(pace * time + level, 0.0, most);
        time = std::min(std::max(time - part, 0.0) + link_pages_[place], ring - part);
        wanted_[place] = part;
        if (k >= count) sum += part;
    }
    return sum;
}

// Returns false if even the highest level is too little. Otherwise leaves in wanted_ what each unit wants at a level
// whose sum is close. Rounding makes up the rest.
bool PartsMaker::find_level(Family family, uint64_t streamed, uint32_t ring) {
    const double goal = static_cast<double>(streamed);
    const double close = std::max(0.25, 0.002 * static_cast<double>(most_.size()));
    double low = family == Family::paced ? -static_cast<double>(ring) : 0;
    double high = highest_level(family, ring);
    double above = want(family, high, ring) - goal;
    if (above < close) return above > -0.5;
    double below = want(family, low, ring) - goal;
    // Takes the secant between a level that is too low and a level that is too high. The value at an end that stays
    // twice is halved, and every fourth round takes the middle.
    int stayed = 0;
    for (int round = 1; round < 60 && high - low > 1e-9 * high; round++) {
        double level = below < 0 && round % 4 ? low - below * (high - low) / (above - below) : low + (high - low) / 2;
        double off = want(family, level, ring) - goal;
        if (std::fabs(off) < close) return true;
        if (off > 0) {
            high = level;
            above = off;
            if (stayed++ > 0) below /= 2;
            stayed = std::max(stayed, 1);
        } else {
            low = level;
            below = off;
            if (stayed-- < 0) above /= 2;
            stayed = std::min(stayed, -1);
        }
    }
    want(family, high, ring);
    return true;
}

// The level at which every unit wants all that it may have.
double PartsMaker::highest_level(Family family, uint32_t ring) const {
    if (family != Family::whole_units) return ring;
    double highest = 1;
    for (size_t k = 0; k < most_.size(); k++) highest = std::max(highest, most_[k] / slope(family, k));
    return highest;
}

double PartsMaker::slope(Family family, size_t place) const {
    // A unit without compute still gets a little, or its level would be infinite.
    return family == Family::whole_units || family == Family::few ? link_pages_[place] + least_slope : 1;
}

uint64_t PartsMaker::tail(size_t place) const {
    const uint32_t u = shape_.order[place];
    return shape_.link_bytes_of_pages(u, shape_.pages[u] - 1, 1);
}

void PartsMaker::want_tails(uint64_t streamed) {
    std::vector<uint32_t> places;
    for (uint32_t k = 0; k < most_.size(); k++)
        if (most_[k] && !shape_.problem->units[shape_.order[k]].whole) places.push_back(k);
    std::stable_sort(places.begin(), places.end(), [&](uint32_t a, uint32_t b) { return tail(a) < tail(b); });
    std::fill(wanted_.begin(), wanted_.end(), 0.0);
    for (uint32_t place : places) {
        if (streamed == 0) return;
        wanted_[place] = 1;
        streamed--;
    }
}

// Where a copy costs more for itself than for its bytes, few copies of many pages are faster than many of a page. A
// step then has time for each between two uses of units that stream.
void PartsMaker::want_few(uint64_t streamed, double most) {
    const auto count = static_cast<uint32_t>(most_.size());
    const auto goal = static_cast<double>(streamed);
    auto groups = static_cast<uint32_t>(std::min<double>(std::ceil(goal / most), count));
    while (want_from(groups, most) < goal && groups < count) groups = std::min(count, groups + 1 + groups / 16);
}

// Divides the units into groups that follow each other and compute equally long. One unit of each group streams, at
// most `most` pages: the one with the largest part, and of equal ones the one whose last page holds the fewest bytes.
// Returns the pages.
double PartsMaker::want_from(uint32_t groups, double most) {
    std::fill(wanted_.begin(), wanted_.end(), 0.0);
    const auto part = [&](size_t k) { return std::min(static_cast<double>(most_[k]), most); };
    double all = 0, before = 0, pages = 0;
    for (size_t k = 0; k < most_.size(); k++) all += slope(Family::few, k);
    for (size_t k = 0; k < most_.size();) {
        const auto group = static_cast<uint32_t>(before * groups / all);
        size_t best = k;
        for (; k < most_.size() && static_cast<uint32_t>(before * groups / all) == group; k++) {
            if (part(k) > part(best) || (part(k) == part(best) && tail(k) < tail(best))) best = k;
            before += slope(Family::few, k);
        }
        wanted_[best] = part(best);
        pages += wanted_[best];
    }
    return pages;
}

// Rounds to pages, and to nothing or all for a unit that is not divided. The sum up to any use stays right.
void PartsMaker::round_parts(bool indivisible) {
    double owed = 0;
    for (size_t k = 0; k < wanted_.size(); k++) {
        uint32_t u = shape_.order[k];
        owed += wanted_[k];
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
    auto room = [&](size_t k) {
        uint32_t u = shape_.order[k];
        return shape_.problem->units[u].whole ? 0 : most_[k] - parts_[u];
    };
    for (;;) {
        uint64_t with_room = 0;
        for (size_t k = 0; k < most_.size(); k++) with_room += room(k) > 0;
        if (missing == 0 || with_room == 0) break;
        for (size_t k = 0; k < most_.size() && missing; k++) {
            if (room(k) == 0) continue;
            uint64_t share = (missing + with_room - 1) / with_room;
            with_room--;
            uint32_t more = static_cast<uint32_t>(std::min<uint64_t>(share, room(k)));
            parts_[shape_.order[k]] += more;
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
    const uint32_t* smallest = nullptr;  // of the remaining units, all of which are larger than the missing pages
    for (size_t k = 0; k < most_.size(); k++) {
        const uint32_t& u = shape_.order[k];
        if (parts_[u] == 0 && most_[k] && (!smallest || shape_.pages[u] < shape_.pages[*smallest])) smallest = &u;
    }
    if (smallest) parts_[*smallest] = shape_.pages[*smallest];
}

void PartsMaker::shrink(uint64_t surplus) {
    auto divisible = [&](uint32_t u) { return !shape_.problem->units[u].whole && parts_[u]; };
    uint64_t left = 0;
    for (uint32_t u : shape_.order) left += divisible(u);
    for (uint32_t u : shape_.order) {
        if (surplus == 0) return;
        if (!divisible(u)) continue;
        uint64_t share = (surplus + left - 1) / left;
        left--;
        uint32_t less = static_cast<uint32_t>(std::min<uint64_t>(share, parts_[u]));
        parts_[u] -= less;
        surplus -= less;
    }
}

// The largest cap on parts with which all parts that are held together fit in the ring.
uint32_t PartsMaker::cap_for(uint32_t ring) const {
    if (shape_.held == 1) return ring;
    std::vector<uint32_t> capped(shape_.pages.size());
    uint32_t fits = 0, fails = ring + 1;
    while (fails - fits > 1) {
        uint32_t cap = fits + (fails - fits) / 2;
        for (uint32_t u : shape_.order)
            capped[u] = shape_.problem->units[u].whole && shape_.pages[u] > cap ? 0 : std::min(shape_.pages[u], cap);
        (widest_window(shape_, capped).pages <= ring ? fits : fails) = cap;
    }
    return fits;
}

uint64_t PartsMaker::most_within(uint32_t cap) const {
    uint64_t pages = 0;
    for (uint32_t u : shape_.order)
        pages += shape_.problem->units[u].whole && shape_.pages[u] > cap ? 0 : std::min(shape_.pages[u], cap);
    return pages;
}

uint32_t PartsMaker::smallest_ring(uint32_t budget) const {
    // A small ring may work because the large whole units are resident, although a larger ring does not work.
    if (shape_.has_whole) return 1;
    uint32_t fails = 0, works = budget;
    while (works - fails > 1) {
        uint32_t ring = fails + (works - fails) / 2;
        (most_within(cap_for(ring)) >= shape_.total_pages - budget + ring ? works : fails) = ring;
    }
    return works;
}

}  // namespace stagehand::policy
