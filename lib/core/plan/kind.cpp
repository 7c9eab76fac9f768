#include "core/plan/kind.h"

#include <algorithm>
#include <utility>

namespace stagehand::core {
namespace {

constexpr uint32_t kMostAveraged = 8;  // samples of one kind

}  // namespace

std::vector<uint64_t> Kind::times() const {
    std::vector<uint64_t> times;
    for (const Order::Entry& entry : entries) times.push_back(entry.compute_ns);
    return times;
}

bool Kind::saw_times(std::vector<uint64_t> measured) {
    const auto write = [&](const std::vector<uint64_t>& times) {
        for (size_t i = 0; i < entries.size() && i < times.size(); i++) entries[i].compute_ns = times[i];
    };
    if (!has_times) {
        write(measured);
        has_times = true;
        samples = 1;
        return true;
    }
    const std::vector<uint64_t> known = times();
    if (policy::differ(known, measured)) {
        if (drift.saw(known, std::move(measured))) {
            write(drift.changed());
            samples = 2;
        }
        return true;
    }
    drift.agrees();
    samples = std::min(samples + 1, kMostAveraged);
    for (size_t i = 0; i < measured.size(); i++) {
        const double step = (static_cast<double>(measured[i]) - static_cast<double>(known[i])) / samples;
        entries[i].compute_ns = static_cast<uint64_t>(std::max(0.0, static_cast<double>(known[i]) + step));
    }
    return false;
}

void Kind::take_order(uint32_t number, std::vector<Order::Entry> of) {
    for (Order::Entry& entry : of) entry.compute_ns = 0;
    entries = std::move(of);
    order = number;
    has_times = false;
    samples = 0;
    drift = {};
}

void Kind::forget_order() noexcept {
    entries.clear();
    has_times = refused = false;
    drift = {};
}

}  // namespace stagehand::core
