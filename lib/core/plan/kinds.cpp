#include "core/plan/kinds.h"

#include <algorithm>
#include <numeric>

namespace stagehand::core {
namespace {

constexpr double kRare = 1.0 / 32;          // of the steps of an order: the plan is not for such a kind
constexpr uint32_t kMostAddDoublings = 12;  // of the steps between two orders that are added

}  // namespace

bool differ(const OrderTimes& one, const OrderTimes& other) {
    const auto alike = [](const auto& a, const auto& b) {
        return a.first == b.first && !policy::differ(a.second, b.second);
    };
    return !std::equal(one.begin(), one.end(), other.begin(), other.end(), alike);
}

Status Kinds::find(const char* name, uint32_t* out) {
    for (uint32_t kind = 0; kind < kMost; kind++)
        if (kinds_[kind].live && kinds_[kind].name == name) {
            *out = kind;
            return Status();
        }
    std::string own = name;
    const uint32_t kind = make_room();
    kinds_[kind].live = true;
    kinds_[kind].name = std::move(own);
    kinds_[kind].last = ++clock_;
    *out = kind;
    return Status();
}

void Kinds::begin(uint32_t named, const Order& order) {
    uint32_t kind = named;
    if (order.given() && kind == kNone) {  // no record will tell
        const auto follows = [&](const Kind& of) {
            return of.live && of.name.empty() && of.order == order.followed().number();
        };
        const auto there = std::ranges::find_if(kinds_, follows);
        kind = there != kinds_.end() ? static_cast<uint32_t>(there - kinds_.begin()) : make_room();
    }
    if (order.given() && kinds_[kind].entries.empty()) {
        kinds_[kind].entries = order.followed().entries();
        kinds_[kind].order = order.followed().number();
        kinds_[kind].has_times = false;
        kinds_[kind].live = true;
    }
    // Nothing fails from here on.
    current_ = kind;
    clock_++;
    if (kind != kNone) came(kind);
}

void Kinds::came(uint32_t kind) noexcept {
    kinds_[kind].last = clock_;
    kinds_[kind].steps++;
    history_.saw(kind);
}

uint32_t Kinds::make_room() {
    uint32_t oldest = kNone;
    for (uint32_t kind = 0; kind < kMost; kind++) {
        if (!kinds_[kind].live) {
            drop(kind);
            return kind;
        }
        if (kind != current_ && (oldest == kNone || kinds_[kind].last < kinds_[oldest].last)) oldest = kind;
    }
    drop(oldest);
    return oldest;
}

void Kinds::drop(uint32_t kind) noexcept {
    kinds_[kind] = {};
    history_.forget(kind);
    if (current_ == kind) current_ = kNone;
}

void Kinds::forget_order(uint32_t kind) noexcept {
    if (kinds_[kind].name.empty()) return drop(kind);
    kinds_[kind].forget_order();
}

void Kinds::clear() noexcept {
    for (uint32_t kind = 0; kind < kMost; kind++) {
        if (!kinds_[kind].live) continue;
        kinds_[kind].deviation.clear();
        forget_order(kind);
    }
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
    kinds_[kind].take_order(number, std::move(entries));
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
    came(kind);
    if (order.has(kinds_[kind].order) || order.is_aside(kinds_[kind].order)) return Learned::nothing;
    if (kinds_[kind].refused && is_alone(kind)) {
        kinds_[kind].refused = false;
        return bring_in(order, kind, true, units);
    }
    const bool returns = history_.runs_of(kind) > 1 && !kinds_[kind].refused;
    const bool stays = history_.steps_in_a_row() > 1;
    if (!order.known() && !order.is_aside()) return bring_in(order, kind, true, units);
    if (returns && order.known()) return bring_in(order, kind, false, units);
    return stays && !kinds_[kind].refused ? bring_in(order, kind, true, units) : Learned::nothing;
}

Kinds::Learned Kinds::bring_in(Order& order, uint32_t kind, bool replaces, size_t units) {
    const Kind& of = kinds_[kind];
    if (order.has(of.order)) return Learned::nothing;
    if (replaces || !order.known()) {
        order.set(of.entries, units, false, of.order);
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
    const uint32_t next = history_.expected();
    return next < kMost && kinds_[next].live && !kinds_[next].entries.empty() ? kinds_[next].order
                                                                              : order.followed().number();
}

bool Kinds::saw_times(uint32_t kind, std::vector<uint64_t> times) {
    if (kind == kNone || !kinds_[kind].live || kinds_[kind].entries.size() != times.size()) return false;
    return kinds_[kind].saw_times(std::move(times));
}

bool Kinds::wants_times() const {
    if (current_ != kNone && !kinds_[current_].name.empty())
        return !kinds_[current_].entries.empty() && !kinds_[current_].has_times;
    const uint32_t next = history_.expected();
    return next < kMost && kinds_[next].live && !kinds_[next].has_times && history_.runs_of(next) > 1;
}

OrderTimes Kinds::times(const Order& order, double copy_ns) const {
    const auto counts = [&](uint32_t number) {
        const Kind& kind = kinds_[number];
        return history_.active() & 1u << number && kind.has_times && order.has(kind.order);
    };
    const auto imbalance = [&](const std::vector<uint64_t>& times) {
        const double compute_ns = std::accumulate(times.begin(), times.end(), 0.0);
        return std::max(compute_ns, copy_ns) / std::max(1.0, std::min(compute_ns, copy_ns));
    };
    std::map<uint32_t, double> steps;
    for (uint32_t number = 0; number < kMost; number++)
        if (counts(number)) steps[kinds_[number].order] += history_.steps_of(number);
    OrderTimes times;
    for (uint32_t number = 0; number < kMost; number++) {
        if (!counts(number)) continue;
        const uint32_t of = kinds_[number].order;
        if (history_.steps_of(number) < kRare * steps[of]) continue;
        std::vector<uint64_t> own = kinds_[number].times();
        const auto there = times.find(of);
        if (there == times.end() || imbalance(own) < imbalance(there->second)) times[of] = std::move(own);
    }
    return times;
}

void Kinds::remove_stale(Order& order, bool only_old) const {
    const uint32_t stay = only_old ? history_.recent() : history_.active();
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
