#include "core/plan/source_speeds.h"

#include <algorithm>
#include <cmath>

namespace stagehand::core {
namespace {

constexpr double kStepsPerOctave = 6;

double rounded(double value) { return std::exp2(std::round(std::log2(value) * kStepsPerOctave) / kStepsPerOctave); }

}  // namespace

void find_source_ns_per_byte(std::span<const Unit> units, std::vector<double>* out) {
    std::vector<double>& found = *out;
    found.assign(units.size(), 0);
    double slowest = 0;
    for (size_t i = 0; i < units.size(); i++) {
        found[i] = units[i].live ? units[i].delivery.ns_per_byte() : 0;
        slowest = std::max(slowest, found[i]);
    }
    for (size_t i = 0; i < units.size(); i++) {
        if (found[i] <= 0 && units[i].live) found[i] = std::min<double>(units[i].delivery.first(), slowest);
        if (found[i] > 0) found[i] = rounded(found[i]);
    }
}

}  // namespace stagehand::core
