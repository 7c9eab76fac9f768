#include "policy/cuts.h"

#include <algorithm>

namespace stagehand::policy {
namespace {

constexpr uint64_t kPartsOfBudget = 128;
constexpr uint64_t kLeastPages = 16;

constexpr uint64_t quotient_up(uint64_t value, uint64_t by) { return value / by + (value % by != 0); }

}  // namespace

uint64_t largest_part(uint64_t budget_pages, uint64_t page_bytes) {
    return std::max(budget_pages / kPartsOfBudget, kLeastPages) * page_bytes;
}

std::vector<Cut> cut(uint64_t bytes, uint64_t unit_bytes, uint64_t largest_bytes, uint64_t most) {
    const uint64_t units = quotient_up(bytes, unit_bytes);
    const uint64_t units_of_part = std::max<uint64_t>(1, largest_bytes / unit_bytes);
    const uint64_t count = std::min(quotient_up(units, units_of_part), most);
    std::vector<Cut> cuts(count);
    // The first `longer` parts have a unit more than the others.
    const uint64_t shorter_units = units / count, longer = units % count;
    uint64_t end = 0;
    for (uint64_t i = 0; i < count; i++) {
        const uint64_t next = std::min(bytes, end + (shorter_units + (i < longer)) * unit_bytes);
        cuts[i] = {end, next - end};
        end = next;
    }
    return cuts;
}

}  // namespace stagehand::policy
