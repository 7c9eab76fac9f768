// The proof of the bounds. It looks at one instant: just after event p of the step. Let L be the bytes on the device if
// everything is kept. Under a target P at least R = L - P bytes are away from the device at p. Only a storage between
// its release and its first use can be away.
//
// Of the R bytes, x are spilled, and the others, y, are computed again after p. Let E be the time by which p happens
// later than recorded, and F the time by which the part of the step after p is longer than recorded.
//
// Out. The copies of the x bytes have ended by p. Consider the storages that can be away at p, in the order of saving.
// Let C be the bytes of those before storage q. At least x - C of the spilled bytes are saved at q or later, so they
// leave between q and p: x - C <= rate * (p - q + E). So E >= x / rate - min over q of (C / rate + p - q).
//
// In. All x bytes are restored after p, and not before the forward's end. In the same way, with C the bytes that are
// first used after u: F >= x / rate - min over u of (C / rate + u - p).
//
// Recompute. The y bytes are computed again after p, so F is at least their times. No y bytes take less time than the
// storages of the fewest ns per byte, the last one in part.
//
// E and F add up. Their sum is convex in y, and the least of it over y bounds the step. The latency of a copy counts
// with the largest storage, which has the most bytes per ns. A storage may count as spilled and as recomputed at once.
// All of this only lowers the bound.
#include "activations/bounds.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "activations/evaluator.h"

namespace stagehand::activations {

namespace {

constexpr uint32_t most_instants = 64;
constexpr double never = std::numeric_limits<double>::infinity();

double ns_per_byte(const SavedStorage& storage) {
    return storage.bytes == 0 ? never : static_cast<double>(storage.recompute_ns) / static_cast<double>(storage.bytes);
}

}  // namespace

ActivationBounds::ActivationBounds(const ActivationTimeline& timeline) : timeline_(timeline) {
    const TrainingStep& step = *timeline.step;
    by_first_use_.resize(timeline.storages());
    std::iota(by_first_use_.begin(), by_first_use_.end(), 0);
    std::sort(by_first_use_.begin(), by_first_use_.end(),
              [&](uint32_t a, uint32_t b) { return timeline.first_use[a] < timeline.first_use[b]; });
    for (uint32_t i = 0; i < timeline.storages(); i++)
        if (step.storages[i].cheap) by_recompute_cost_.push_back(i);
    std::stable_sort(by_recompute_cost_.begin(), by_recompute_cost_.end(), [&](uint32_t a, uint32_t b) {
        return ns_per_byte(step.storages[a]) < ns_per_byte(step.storages[b]);
    });

    const std::vector<Fate> keep(timeline.storages(), Fate::keep);
    ActivationEvaluator evaluator(timeline);
    const std::span<const int64_t> levels = evaluator.settled_levels(keep);
    const size_t events = timeline.events.size();
    std::vector<int64_t> away(events + 1);
    for (uint32_t i = 0; i < timeline.storages(); i++) {
        if (!timeline.spillable(i) && !step.storages[i].cheap) continue;
        away[timeline.released[i]] += static_cast<int64_t>(step.storages[i].bytes);
        away[timeline.first_use[i]] -= static_cast<int64_t>(step.storages[i].bytes);
    }
    int64_t now_away = 0;
    for (size_t place = 0; place < events; place++) {
        now_away += away[place];
        least_level_ = std::max(least_level_, levels[place] - now_away);
    }
    // The fullest event of each slice of the step.
    const size_t slices = std::min<size_t>(most_instants, events);
    for (size_t slice = 0; slice < slices; slice++) {
        const auto begin = levels.begin() + static_cast<ptrdiff_t>(slice * events / slices);
        const auto end = levels.begin() + static_cast<ptrdiff_t>((slice + 1) * events / slices);
        const auto fullest = std::max_element(begin, end);
        instants_.push_back(at(static_cast<uint32_t>(fullest - levels.begin()), *fullest));
    }
}

bool ActivationBounds::away_at(uint32_t place, uint32_t storage) const {
    return timeline_.released[storage] <= place && timeline_.first_use[storage] > place;
}

ActivationBounds::Instant ActivationBounds::at(uint32_t place, int64_t level) const {
    const TrainingStep& step = *timeline_.step;
    Instant instant;
    instant.level = level;
    uint64_t largest = 1;
    for (uint32_t i = 0; i < timeline_.storages(); i++) {
        if (!away_at(place, i)) continue;
        const uint64_t bytes = step.storages[i].bytes;
        if (timeline_.spillable(i)) {
            instant.spillable += static_cast<double>(bytes);
            largest = std::max(largest, bytes);
        }
        if (timeline_.spillable(i) || step.storages[i].cheap) instant.eligible += static_cast<double>(bytes);
    }
    instant.recompute_bytes.push_back(0);
    instant.recompute_ns.push_back(0);
    for (uint32_t i : by_recompute_cost_) {
        if (!away_at(place, i) || step.storages[i].bytes == 0) continue;
        instant.recompute_bytes.push_back(instant.recompute_bytes.back() + static_cast<double>(step.storages[i].bytes));
        instant.recompute_ns.push_back(instant.recompute_ns.back() +
                                       static_cast<double>(step.storages[i].recompute_ns));
    }
    if (instant.spillable > 0) {
        const double size = static_cast<double>(largest), latency = static_cast<double>(step.copy_latency_ns);
        instant.out_rate = size / (latency + size / step.to_host.left());
        instant.in_rate = size / (latency + size / step.to_device.left());
        find_out_limit(place, instant);
        find_in_limit(place, instant);
    }
    return instant;
}

void ActivationBounds::find_out_limit(uint32_t place, Instant& instant) const {
    const TrainingStep& step = *timeline_.step;
    double before = 0;
    instant.out_ns = never;
    for (uint32_t i = 0; i < timeline_.storages(); i++) {
        if (!away_at(place, i) || !timeline_.spillable(i)) continue;
        const double time = static_cast<double>(timeline_.events[place].ns - step.storages[i].produced_ns);
        instant.out_ns = std::min(instant.out_ns, before / instant.out_rate + time);
        before += static_cast<double>(step.storages[i].bytes);
    }
}

void ActivationBounds::find_in_limit(uint32_t place, Instant& instant) const {
    const TrainingStep& step = *timeline_.step;
    double after = 0;
    instant.in_ns = never;
    for (size_t k = by_first_use_.size(); k-- > 0;) {
        const uint32_t i = by_first_use_[k];
        if (!away_at(place, i) || !timeline_.spillable(i)) continue;
        const uint64_t use = step.storages[i].first_use_ns;
        const bool in_backward = timeline_.first_use[i] > timeline_.forward_end;
        const uint64_t from =
            in_backward ? std::max(timeline_.events[place].ns, step.forward_end_ns) : timeline_.events[place].ns;
        instant.in_ns = std::min(instant.in_ns, after / instant.in_rate + static_cast<double>(use - from));
        after += static_cast<double>(step.storages[i].bytes);
    }
}

double ActivationBounds::Instant::recompute_time(double bytes) const {
    const auto above = std::upper_bound(recompute_bytes.begin(), recompute_bytes.end(), bytes);
    if (above == recompute_bytes.end()) return recompute_ns.back();
    const size_t k = static_cast<size_t>(above - recompute_bytes.begin());
    const double part = (bytes - recompute_bytes[k - 1]) / (recompute_bytes[k] - recompute_bytes[k - 1]);
    return recompute_ns[k - 1] + part * (recompute_ns[k] - recompute_ns[k - 1]);
}

double ActivationBounds::Instant::extra_ns(double spilled, double recomputed) const {
    const double out = std::max(0.0, spilled / out_rate - out_ns);
    return out + std::max({0.0, spilled / in_rate - in_ns, recompute_time(recomputed)});
}

// The function is convex and piecewise linear in the recomputed bytes. Its kinks are the points of the recomputes, the
// point where the copies out just need no wait, and the point where the restores take as long as the recomputes.
double ActivationBounds::Instant::least_extra_ns(double away, AwayBytes* best) const {
    if (away <= 0) return 0;
    if (away > eligible) return never;
    const double low = std::max(0.0, away - spillable), high = std::min(away, recompute_bytes.back());
    double least = never;
    auto attempt = [&](double y) {
        y = std::clamp(y, low, high);
        const double extra = extra_ns(away - y, y);
        if (extra >= least) return;
        least = extra;
        if (best) *best = {away - y, y};
    };
    auto value = [&](size_t k) { return extra_ns(away - recompute_bytes[k], recompute_bytes[k]); };
    attempt(low);
    attempt(high);
    if (spillable > 0) attempt(away - out_ns * out_rate);
    // The first point from which the function rises.
    size_t from = static_cast<size_t>(std::lower_bound(recompute_bytes.begin(), recompute_bytes.end(), low) -
                                      recompute_bytes.begin());
    size_t to = static_cast<size_t>(std::upper_bound(recompute_bytes.begin(), recompute_bytes.end(), high) -
                                    recompute_bytes.begin());
    const size_t first = from, end = to;
    if (from < to) to--;
    while (from < to) {
        const size_t middle = from + (to - from) / 2;
        if (value(middle + 1) < value(middle))
            from = middle + 1;
        else
            to = middle;
    }
    for (size_t k = from > first ? from - 1 : from; k <= from + 1 && k < end; k++) attempt(recompute_bytes[k]);
    // Where the restores take as long as the recomputes: on the segments beside that point.
    for (size_t k = from > 0 ? from - 1 : 0; k < from + 2 && k + 1 < recompute_bytes.size(); k++) {
        const double begin = recompute_bytes[k], width = recompute_bytes[k + 1] - begin;
        const double slope = (recompute_ns[k + 1] - recompute_ns[k]) / width;
        const double cross = ((away - begin) / in_rate - in_ns - recompute_ns[k]) / (slope + 1 / in_rate);
        if (cross > 0 && cross < width) attempt(begin + cross);
    }
    return least;
}

double ActivationBounds::least_step_ns(uint64_t target_bytes) const {
    const double target = static_cast<double>(target_bytes);
    if (static_cast<double>(least_level_) > target) return never;
    double extra = 0;
    for (const Instant& instant : instants_)
        extra = std::max(extra, instant.least_extra_ns(static_cast<double>(instant.level) - target));
    return static_cast<double>(timeline_.step->end_ns) + extra;
}

AwayBytes ActivationBounds::split(uint64_t target_bytes) const {
    AwayBytes best;
    double most = -1;
    for (const Instant& instant : instants_) {
        AwayBytes found;
        const double extra =
            instant.least_extra_ns(static_cast<double>(instant.level) - static_cast<double>(target_bytes), &found);
        if (extra == never || extra <= most) continue;
        most = extra;
        best = found;
    }
    return best;
}

uint64_t ActivationBounds::least_peak(double target_ns) const {
    const double extra = target_ns - static_cast<double>(timeline_.step->end_ns);
    int64_t peak = least_level_;
    for (const Instant& instant : instants_) {
        int64_t low = 0, high = instant.level - peak + 1;
        if (extra < 0) high = 1;
        // The bytes that can be away grow with the time. `high` is too many, or not worth a look.
        while (high - low > 1) {
            const int64_t middle = low + (high - low) / 2;
            (instant.least_extra_ns(static_cast<double>(middle)) <= extra ? low : high) = middle;
        }
        peak = std::max(peak, instant.level - low);
    }
    return static_cast<uint64_t>(peak);
}

}  // namespace stagehand::activations
