#include "core/plan/kinds.h"

#include <algorithm>
#include <bit>
#include <cmath>

namespace stagehand::core {
namespace {

constexpr uint32_t kMostAveraged = 8;       // samples of one kind
constexpr uint32_t kSamplesOfAKind = 2;     // before it counts, so that a single outlier does not
constexpr uint32_t kSamplesOfAMix = 8;      // before its weights are known
constexpr uint32_t kMostAddDoublings = 12;  // of the steps between two orders that are added
constexpr double kWeightsApart = 0.3;       // of the larger one
constexpr double kLeastWeight = 0.02;       // below, a weight makes no difference

std::vector<uint64_t> times_of(const std::vector<Order::Entry>& entries) {
    std::vector<uint64_t> times;
    for (const Order::Entry& entry : entries) times.push_back(entry.compute_ns);
    return times;
}

std::vector<uint64_t> times_of(const std::vector<policy::Use>& trace) {
    std::vector<uint64_t> times;
    for (const policy::Use& use : trace) times.push_back(use.compute_ns);
    return times;
}

void write_times(std::vector<Order::Entry>& entries, const std::vector<uint64_t>& times) {
    for (size_t i = 0; i < entries.size() && i < times.size(); i++) entries[i].compute_ns = times[i];
}

}  // namespace

bool differ(const StepMix& one, const StepMix& other) {
    if (one.traces.size() != other.traces.size()) return true;
    for (size_t place = 0; place < one.traces.size(); place++) {
        const auto there = std::ranges::find(other.kinds, one.kinds[place]);
        if (there == other.kinds.end()) return true;
        const size_t at = static_cast<size_t>(there - other.kinds.begin());
        if (one.orders[place] != other.orders[at]) return true;
        if (policy::differ(times_of(one.traces[place]), times_of(other.traces[at]))) return true;
        const double a = one.weight(place), b = other.weight(at), most = std::max(a, b);
        if (most > kLeastWeight && std::fabs(a - b) > kWeightsApart * most) return true;
    }
    return false;
}

Status Kinds::find(const char* name, uint32_t* out) {
    for (uint32_t kind = 0; kind < kMost; kind++)
        if (kinds_[kind].live && kinds_[kind].name == name) {
            *out = kind;
            return Status();
        }
    std::string own = name;
    const uint32_t kind = make_room();
    kinds_[kind].live = named_ = true;
    kinds_[kind].name = std::move(own);
    kinds_[kind].last = ++clock_;
    *out = kind;
    return Status();
}

void Kinds::begin(uint32_t named, const Order& order) {
    if (named != kNone && kinds_[named].entries.empty() && order.given()) {
        Kind& kind = kinds_[named];
        kind.entries = order.followed().entries();
        kind.order = order.followed().number();
        kind.has_times = false;
    }
    // Nothing fails from here on.
    current_ = named;
    clock_++;
    if (named == kNone) return;
    kinds_[named].last = clock_;
    kinds_[named].steps++;
    steps_.saw(named);
}

uint32_t Kinds::make_room() {
    uint32_t oldest = kNone;
    for (uint32_t kind = 0; kind < kMost; kind++) {
        if (!kinds_[kind].live) {
            drop(kind);
            kinds_[kind].serial = ++serial_;
            return kind;
        }
        if (kind != current_ && (oldest == kNone || kinds_[kind].last < kinds_[oldest].last)) oldest = kind;
    }
    drop(oldest);
    kinds_[oldest].serial = ++serial_;
    return oldest;
}

void Kinds::drop(uint32_t kind) noexcept {
    kinds_[kind] = {};
    steps_.forget(kind);
    samples_.forget(kind);
    if (current_ == kind) current_ = kNone;
}

void Kinds::forget_order(uint32_t kind) noexcept {
    if (kinds_[kind].name.empty()) return drop(kind);
    kinds_[kind].entries.clear();
    kinds_[kind].has_times = kinds_[kind].refused = false;
    kinds_[kind].drift = {};
}

void Kinds::clear() noexcept {
    for (uint32_t kind = 0; kind < kMost; kind++) {
        if (!kinds_[kind].live) continue;
        kinds_[kind].deviation.clear();
        forget_order(kind);
    }
    samples_.clear();
}

uint32_t Kinds::find_order(const std::vector<Order::Entry>& entries, bool unnamed) const {
    for (uint32_t kind = 0; kind < kMost; kind++)
        if (kinds_[kind].live && (!unnamed || kinds_[kind].name.empty()) &&
            Sequence::same(kinds_[kind].entries, entries))
            return kind;
    return kNone;
}

// Gives the kind an order without times. Kinds with the same order share its number.
void Kinds::take_order(uint32_t kind, const Order& order, std::vector<Order::Entry> entries) {
    const uint32_t like = find_order(entries, false);
    const std::optional<uint32_t> there = order.find(entries);
    const uint32_t number = there ? *there : like != kNone ? kinds_[like].order : next_order_++;
    for (Order::Entry& entry : entries) entry.compute_ns = 0;
    Kind& of = kinds_[kind];
    of.entries = std::move(entries);
    of.order = number;
    of.has_times = false;
    of.samples = 0;
    of.drift = {};
}

Kinds::Learned Kinds::learn(Order& order, const OrderRecord& record, size_t units) {
    const std::vector<Order::Entry>& recorded = record.entries();
    if (recorded.empty()) return Learned::nothing;
    return current_ != kNone && !kinds_[current_].name.empty() ? learn_named(order, recorded, units)
                                                               : learn_unnamed(order, recorded, units);
}

Kinds::Learned Kinds::learn_named(Order& order, const std::vector<Order::Entry>& recorded, size_t units) {
    Kind& kind = kinds_[current_];
    const bool is_new = kind.entries.empty();
    if (!is_new && Sequence::same(kind.entries, recorded)) {
        kind.deviation.clear();
        if (kind.refused && is_alone(current_)) {
            kind.refused = false;
            return bring_in(order, current_, true, units);
        }
        const bool stays_out = order.has(kind.order) || kind.refused || order.is_aside(kind.order);
        return stays_out ? Learned::nothing : bring_in(order, current_, false, units);
    }
    if (!is_new && !Sequence::same(kind.deviation, recorded)) {
        kind.deviation = recorded;
        return Learned::nothing;
    }
    const uint32_t before = kind.order;
    take_order(current_, order, recorded);
    kind.deviation.clear();
    kind.refused = false;
    bool shared = false;
    for (const Kind& other : kinds_) shared = shared || (&other != &kind && other.live && other.order == before);
    const bool only_one = order.known() && !order.has_others() && order.followed().number() == before;
    const Learned learned = bring_in(order, current_, !is_new && !shared && only_one, units);
    if (!is_new && !shared && learned == Learned::added)
        order.remove_others_if([&](uint32_t number) { return number == before; });
    return learned;
}

Kinds::Learned Kinds::learn_unnamed(Order& order, const std::vector<Order::Entry>& recorded, size_t units) {
    uint32_t kind = find_order(recorded, true);
    if (kind == kNone) {
        kind = make_room();
        take_order(kind, order, recorded);
        kinds_[kind].live = true;
    }
    current_ = kind;
    kinds_[kind].last = clock_;
    kinds_[kind].steps++;
    steps_.saw(kind);
    if (order.has(kinds_[kind].order) || order.is_aside(kinds_[kind].order)) return Learned::nothing;
    if (kinds_[kind].refused && is_alone(kind)) {
        kinds_[kind].refused = false;
        return bring_in(order, kind, true, units);
    }
    const bool returns = steps_.runs_of(kind) > 1 && !kinds_[kind].refused;
    const bool stays = steps_.seen_in_a_row() > 1;
    if (!order.known() && !order.is_aside()) return bring_in(order, kind, true, units);
    if (returns && order.known()) return bring_in(order, kind, false, units);
    return stays && !kinds_[kind].refused ? bring_in(order, kind, true, units) : Learned::nothing;
}

Kinds::Learned Kinds::bring_in(Order& order, uint32_t kind, bool replaces, size_t units) {
    const Kind& of = kinds_[kind];
    if (order.has(of.order)) return Learned::nothing;
    if (replaces || !order.known()) {
        order.set(of.entries, units, false, of.order);
        samples_.clear();
        return Learned::replaced;
    }
    if (clock_ < next_add_) return Learned::nothing;
    order.add(of.entries, units, of.order);
    next_add_ = clock_ + (uint64_t{1} << std::min(adds_++, kMostAddDoublings));
    return Learned::added;
}

uint32_t Kinds::order_of_this(const Order& order) const {
    return current_ != kNone && !kinds_[current_].entries.empty() ? kinds_[current_].order : order.followed().number();
}

uint32_t Kinds::order_of_next(const Order& order) const {
    const uint32_t next = steps_.expected();
    return next < kMost && kinds_[next].live && !kinds_[next].entries.empty() ? kinds_[next].order
                                                                              : order.followed().number();
}

// The kind of this order whose times these are. A new one if there is none.
uint32_t Kinds::cluster(const Order& order, const std::vector<uint64_t>& times) {
    uint32_t without_times = kNone;
    for (uint32_t kind = 0; kind < kMost; kind++) {
        const Kind& of = kinds_[kind];
        if (!of.live || of.order != order.followed().number() || of.entries.size() != times.size()) continue;
        if (!of.has_times)
            without_times = kind;
        else if (!policy::differ(times_of(of.entries), times))
            return kind;
    }
    if (without_times != kNone) return without_times;
    std::vector<Order::Entry> entries = order.followed().entries();
    const uint32_t kind = make_room();
    kinds_[kind].live = true;
    kinds_[kind].entries = std::move(entries);
    kinds_[kind].order = order.followed().number();
    return kind;
}

bool Kinds::saw_times(uint32_t kind, const Order& order, std::vector<uint64_t> times, uint64_t steps) {
    const bool sampled = is_sampled(order);
    if (sampled) kind = cluster(order, times);
    if (kind == kNone || !kinds_[kind].live || kinds_[kind].entries.size() != times.size()) return false;
    Kind& of = kinds_[kind];
    if (sampled) {
        samples_.saw(kind, steps);
        of.last = clock_;
    }
    if (!of.has_times) {
        write_times(of.entries, times);
        of.has_times = true;
        of.samples = 1;
        return true;
    }
    const std::vector<uint64_t> known = times_of(of.entries);
    if (policy::differ(known, times)) {
        if (!of.drift.saw(known, std::move(times))) return false;
        write_times(of.entries, of.drift.changed());
        of.samples = 2;
        return true;
    }
    of.drift.agrees();
    of.samples = std::min(of.samples + 1, kMostAveraged);
    for (size_t i = 0; i < times.size(); i++) {
        const double step = (static_cast<double>(times[i]) - static_cast<double>(known[i])) / of.samples;
        of.entries[i].compute_ns = static_cast<uint64_t>(std::max(0.0, static_cast<double>(known[i]) + step));
    }
    return false;
}

bool Kinds::wants_times() const {
    if (current_ != kNone && !kinds_[current_].name.empty())
        return !kinds_[current_].entries.empty() && !kinds_[current_].has_times;
    const uint32_t next = steps_.expected();
    return next < kMost && kinds_[next].live && !kinds_[next].has_times && steps_.runs_of(next) > 1;
}

StepMix Kinds::mix(const Order& order) const {
    const policy::KindHistory& of = history(order);
    const bool sampled = is_sampled(order);
    StepMix mix;
    if (sampled && of.seen_in_a_row() < kSamplesOfAKind && std::popcount(of.active()) < 2) return mix;
    if (sampled && std::popcount(of.active()) > 1 && of.seen() < kSamplesOfAMix) return mix;
    std::array<uint32_t, kMost> places;
    places.fill(kNone);
    for (const policy::Visit& visit : of.cycle(sampled)) {
        const Kind& kind = kinds_[visit.kind];
        if (!kind.live || !kind.has_times || !order.has(kind.order)) continue;
        if (sampled && kind.samples < kSamplesOfAKind) continue;
        if (places[visit.kind] == kNone) {
            places[visit.kind] = static_cast<uint32_t>(mix.traces.size());
            mix.kinds.push_back(kind.serial);
            mix.orders.push_back(kind.order);
            std::vector<policy::Use>& trace = mix.traces.emplace_back();
            for (const Order::Entry& entry : kind.entries) trace.push_back({entry.unit, entry.compute_ns});
        }
        mix.cycle.push_back({places[visit.kind], visit.steps});
    }
    if (mix.traces.size() == 1) mix.cycle = {{0, 1}};
    return mix;
}

void Kinds::remove_stale(Order& order, bool only_old) const {
    const uint32_t stay = only_old ? steps_.recent() : steps_.active();
    order.remove_others_if([&](uint32_t number) {
        bool comes = false;
        for (uint32_t kind = 0; kind < kMost; kind++)
            comes = comes || (stay & 1u << kind && kinds_[kind].live && kinds_[kind].order == number);
        return !comes;
    });
}

void Kinds::refuse_others(const Order& order) {
    for (Kind& kind : kinds_)
        if (kind.live && kind.order != order.followed().number()) kind.refused = true;
}

}  // namespace stagehand::core
