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

struct Range {
    uint64_t least, most;
};

// The lower convex hull of the curve in the range, by ascending pages. It ends at its lowest point.
std::vector<CurvePoint> hull_of(std::span<const CurvePoint> curve, Range range) {
    std::vector<CurvePoint> hull;
    auto add = [&](CurvePoint point) {
        if (!hull.empty() && !(point.step_ns < hull.back().step_ns)) return;
        while (hull.size() > 1 && slope(hull[hull.size() - 2], hull.back()) <= slope(hull.back(), point))
            hull.pop_back();
        hull.push_back(point);
    };
    add({range.least, step_at(curve, range.least)});
    for (const CurvePoint& point : curve)
        if (point.pages > hull.back().pages && point.pages < range.most) add(point);
    if (range.most > hull.back().pages) add({range.most, step_at(curve, range.most)});
    return hull;
}

// Hands `rest` out in proportion to the room of each share. Returns what is left.
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

// Finds the division with the least time per second by branch and bound. If the pages run out between two corners of a
// hull, the curve itself may lie far above the hull. Then that stake's range is cut there, and each piece is tried
// separately. With convex curves the first division is the best.
class Divider {
public:
    Divider(uint64_t pages, std::span<const Stake> stakes) : pages_(pages), stakes_(stakes) {
        size_t points = 0;
        for (const Stake& stake : stakes) points += 2 + stake.curve.size();
        divisions_ = std::clamp<size_t>(40'000 / std::max<size_t>(1, points), 4, 400);
    }

    // Hands out nothing where more pages gain nothing. The floors must fit.
    std::vector<uint64_t> run() {
        std::vector<Range> all;
        for (const Stake& stake : stakes_) all.push_back({stake.floor_pages, most_of(stake)});
        pending_.push_back(std::move(all));
        while (!pending_.empty() && divisions_-- > 0) {
            const std::vector<Range> ranges = std::move(pending_.back());
            pending_.pop_back();
            explore(ranges);
        }
        return std::move(best_);
    }

private:
    struct Segment {
        double value;  // the time that each page saves per second
        size_t stake;
        uint64_t pages;
    };

    void explore(const std::vector<Range>& ranges) {
        std::vector<uint64_t> shares;
        uint64_t rest = pages_;
        for (const Range& range : ranges) {
            if (range.least > rest) return;
            rest -= range.least;
            shares.push_back(range.least);
        }
        hulls_.clear();
        for (size_t k = 0; k < ranges.size(); k++)
            hulls_.push_back(rate_of(stakes_[k]) > 0 ? hull_of(stakes_[k].curve, ranges[k])
                                                     : std::vector<CurvePoint>{});
        share_out(rest, shares);

        double time = 0, bound = 0, widest_gap = 0;
        size_t widest = 0;
        for (size_t k = 0; k < ranges.size(); k++) {
            const double rate = rate_of(stakes_[k]);
            const double on_curve = rate * step_at(stakes_[k].curve, shares[k]);
            const double on_hull = rate * step_at(hulls_[k], shares[k]);
            time += on_curve;
            bound += on_hull;
            if (on_curve - on_hull <= widest_gap) continue;
            widest_gap = on_curve - on_hull;
            widest = k;
        }
        if (best_.empty() || time < best_time_) {
            best_ = shares;
            best_time_ = time;
        }
        if (bound < best_time_ * (1 - least_improvement) && widest_gap > 0) cut(ranges, widest, shares[widest]);
    }

    // Takes the segments with the highest value first.
    void share_out(uint64_t rest, std::vector<uint64_t>& shares) const {
        std::vector<Segment> segments;
        for (size_t k = 0; k < hulls_.size(); k++)
            for (size_t j = 0; j + 1 < hulls_[k].size(); j++) {
                const CurvePoint &from = hulls_[k][j], &to = hulls_[k][j + 1];
                segments.push_back({rate_of(stakes_[k]) * slope(from, to), k, to.pages - from.pages});
            }
        std::stable_sort(segments.begin(), segments.end(),
                         [](const Segment& a, const Segment& b) { return a.value > b.value; });
        std::vector<uint64_t> room(shares.size());
        for (size_t begin = 0, end = 0; begin < segments.size() && rest; begin = end) {
            std::fill(room.begin(), room.end(), 0);
            const double least = segments[begin].value * (1 - value_tolerance);
            for (; end < segments.size() && segments[end].value >= least; end++)
                room[segments[end].stake] += segments[end].pages;
            rest = hand_out(rest, room, shares);
        }
    }

    void cut(const std::vector<Range>& ranges, size_t stake, uint64_t share) {
        uint64_t before = ranges[stake].least, after = ranges[stake].most;
        for (const CurvePoint& point : stakes_[stake].curve) {
            if (point.pages <= share) before = std::max(before, point.pages);
            if (point.pages >= share) after = std::min(after, point.pages);
        }
        auto attempt = [&](uint64_t least, uint64_t most) {
            pending_.push_back(ranges);
            pending_.back()[stake] = {least, most};
        };
        attempt(ranges[stake].least, before);
        attempt(after, ranges[stake].most);
        if (before < after) attempt(before, after);
    }

    static constexpr double least_improvement = 0.002;

    uint64_t pages_;
    std::span<const Stake> stakes_;
    size_t divisions_;  // the number of divisions that may still be tried
    std::vector<std::vector<Range>> pending_;
    std::vector<std::vector<CurvePoint>> hulls_;
    std::vector<uint64_t> best_;
    double best_time_ = 0;
};

}  // namespace

std::optional<std::vector<uint64_t>> divide_by_value(uint64_t pages, std::span<const Stake> stakes) {
    uint64_t rest = pages;
    for (const Stake& stake : stakes) {
        if (stake.floor_pages > rest) return std::nullopt;
        rest -= stake.floor_pages;
    }
    std::vector<uint64_t> shares = Divider(pages, stakes).run();
    std::vector<uint64_t> room(stakes.size());
    rest = pages;
    for (size_t k = 0; k < stakes.size(); k++) {
        rest -= shares[k];
        room[k] = most_of(stakes[k]) - shares[k];
    }
    hand_out(rest, room, shares);
    return shares;
}

double time_per_second(std::span<const Stake> stakes, std::span<const uint64_t> shares) {
    double sum = 0;
    for (size_t k = 0; k < std::min(stakes.size(), shares.size()); k++)
        sum += rate_of(stakes[k]) * step_at(stakes[k].curve, shares[k]);
    return sum;
}

bool worth_changing(std::span<const Stake> stakes, std::span<const uint64_t> now, std::span<const uint64_t> then) {
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
