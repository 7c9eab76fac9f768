#include "policy/division.h"

#include <algorithm>
#include <cmath>

#include "policy/budget.h"

namespace stagehand::policy {

namespace {

double rate_of(const Stake& stake) {
    return stake.steps_per_second > 0 && std::isfinite(stake.steps_per_second) ? stake.steps_per_second : 0;
}

uint64_t most_of(const Stake& stake) { return std::max(stake.floor_pages, stake.most_pages); }

double distance(uint64_t from, uint64_t to) { return static_cast<double>(to - from); }

double step_at(std::span<const CurvePoint> curve, uint64_t pages) {
    if (curve.empty()) return 0;
    auto next = std::lower_bound(curve.begin(), curve.end(), pages,
                                 [](const CurvePoint& point, uint64_t p) { return point.pages < p; });
    if (next == curve.begin()) return curve.front().step_ns;
    if (next == curve.end()) return curve.back().step_ns;
    const CurvePoint& before = next[-1];
    const double along = distance(before.pages, pages) / distance(before.pages, next->pages);
    return before.step_ns + (next->step_ns - before.step_ns) * along;
}

double slope(const CurvePoint& from, const CurvePoint& to) {
    return (from.step_ns - to.step_ns) / distance(from.pages, to.pages);
}

// The lower convex hull of the curve between the floor and the most, by ascending pages. It ends at its
// lowest point.
std::vector<CurvePoint> hull_of(const Stake& stake) {
    std::vector<CurvePoint> hull;
    auto add = [&](CurvePoint point) {
        if (!hull.empty() && !(point.step_ns < hull.back().step_ns)) return;
        while (hull.size() > 1 && slope(hull[hull.size() - 2], hull.back()) <= slope(hull.back(), point))
            hull.pop_back();
        hull.push_back(point);
    };
    const uint64_t floor = stake.floor_pages;
    const uint64_t most = most_of(stake);
    add({floor, step_at(stake.curve, floor)});
    for (const CurvePoint& point : stake.curve)
        if (point.pages > hull.back().pages && point.pages < most) add(point);
    if (most > hull.back().pages) add({most, step_at(stake.curve, most)});
    return hull;
}

struct Segment {
    double value;  // time saved per second by each page
    size_t stake;
    uint64_t pages;
};

std::vector<Segment> segments_by_value(std::span<const Stake> stakes) {
    std::vector<Segment> segments;
    for (size_t k = 0; k < stakes.size(); k++) {
        const double rate = rate_of(stakes[k]);
        if (rate == 0 || stakes[k].curve.empty()) continue;
        const std::vector<CurvePoint> hull = hull_of(stakes[k]);
        for (size_t j = 0; j + 1 < hull.size(); j++) {
            const double value = rate * slope(hull[j], hull[j + 1]);
            if (value > 0) segments.push_back({value, k, hull[j + 1].pages - hull[j].pages});
        }
    }
    std::stable_sort(segments.begin(), segments.end(),
                     [](const Segment& a, const Segment& b) { return a.value > b.value; });
    return segments;
}

// Hands `rest` out in proportion to what each one has room for, and returns what is left.
uint64_t hand_out(uint64_t rest, std::span<const uint64_t> room, std::vector<uint64_t>& shares) {
    std::vector<Request> requests;
    for (const uint64_t pages : room) requests.push_back({0, pages, static_cast<double>(pages)});
    const std::vector<uint64_t> given = *divide(rest, requests);
    for (size_t k = 0; k < shares.size(); k++) {
        shares[k] += given[k];
        rest -= given[k];
    }
    return rest;
}

}  // namespace

std::optional<std::vector<uint64_t>> divide_by_value(uint64_t pages, std::span<const Stake> stakes) {
    std::vector<uint64_t> shares;
    uint64_t rest = pages;
    for (const Stake& stake : stakes) {
        if (stake.floor_pages > rest) return std::nullopt;
        rest -= stake.floor_pages;
        shares.push_back(stake.floor_pages);
    }
    const std::vector<Segment> segments = segments_by_value(stakes);
    std::vector<uint64_t> room(stakes.size());
    for (size_t begin = 0, end = 0; begin < segments.size() && rest; begin = end) {
        std::fill(room.begin(), room.end(), 0);
        for (; end < segments.size() && segments[end].value >= segments[begin].value * (1 - value_tolerance);
             end++)
            room[segments[end].stake] += segments[end].pages;
        rest = hand_out(rest, room, shares);
    }
    for (size_t k = 0; k < stakes.size(); k++) room[k] = most_of(stakes[k]) - shares[k];
    hand_out(rest, room, shares);
    return shares;
}

double time_per_second(std::span<const Stake> stakes, std::span<const uint64_t> shares) {
    double sum = 0;
    for (size_t k = 0; k < std::min(stakes.size(), shares.size()); k++)
        sum += rate_of(stakes[k]) * step_at(stakes[k].curve, shares[k]);
    return sum;
}

bool worth_changing(std::span<const Stake> stakes, std::span<const uint64_t> now,
                    std::span<const uint64_t> then) {
    if (then.size() != stakes.size()) return false;
    if (now.size() != stakes.size()) return true;
    uint64_t more = 0, less = 0;
    double gain = 0, loss = 0;
    for (size_t k = 0; k < stakes.size(); k++) {
        if (now[k] < stakes[k].floor_pages) return true;
        const double saved =
            rate_of(stakes[k]) * (step_at(stakes[k].curve, now[k]) - step_at(stakes[k].curve, then[k]));
        (saved > 0 ? gain : loss) += std::fabs(saved);
        if (then[k] > now[k])
            more += then[k] - now[k];
        else
            less += now[k] - then[k];
    }
    if (less > more) return true;
    return gain >= least_gain_over_loss * loss && gain - loss > 0 &&
           gain - loss >= least_saving * time_per_second(stakes, now);
}

}  // namespace stagehand::policy
