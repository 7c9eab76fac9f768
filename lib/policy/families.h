// Families of parts. For a given ring, one number, the level, gives every unit a part. So a search over the ring's size
// alone covers a family.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "policy/shape.h"

namespace stagehand::policy {

enum class Family : uint8_t {
    rare_level,   // as level, but only the units that cost least, as long as these are enough
    rare_paced,   // as paced, but only the units that cost least, as long as these are enough
    level,        // min(size, level): the copies have equal sizes, and the ring holds equal amounts
    filled,       // as level, but each unit leaves as much of the ring free as the link fills during its compute
    paced,        // level plus the pages for which the link still has time before the unit's turn
    tails,        // last pages, first of the units whose last pages hold the fewest bytes
    few,          // the fewest units, each with all pages that the ring takes, spread evenly over the step
    half_few,     // as few, each with so few pages that the next copy fits beside those that are held
    whole_units,  // whole units, spread evenly over the step's compute time
};

inline constexpr Family all_families[] = {
    Family::rare_level, Family::rare_paced, Family::level,    Family::filled,      Family::paced,
    Family::tails,      Family::few,        Family::half_few, Family::whole_units,
};

class PartsMaker {
public:
    explicit PartsMaker(const Shape& shape);

    // Makes parts that add up to at least `streamed` pages, so that any parts that are held together fit in the ring.
    // The sum is as close to `streamed` as units that must be whole allow. Nothing if the family has no such parts.
    std::optional<std::vector<uint32_t>> make(Family family, uint64_t streamed, uint32_t ring);

    // True if some units cost more copies per page than others, because they are used more often, have fewer gaps
    // or come from slower sources. If not, the rare families equal the plain ones.
    bool uneven_costs() const { return uneven_costs_; }

    // A size below which no ring and parts fit in `budget` pages together. It is the smallest size that fits, unless
    // units must be whole or several are held at once.
    uint32_t smallest_ring(uint32_t budget) const;

private:
    uint32_t cap_for(uint32_t ring) const;
    void spare_costly(uint64_t available, uint64_t streamed);
    uint64_t most_within(uint32_t cap) const;
    double slope(Family family, size_t place) const;
    double highest_level(Family family, uint32_t ring) const;
    double want(Family family, double level, uint32_t ring);
    bool find_level(Family family, uint64_t streamed, uint32_t ring);
    uint64_t tail(size_t place) const;  // the bytes of the unit's last page that are copied
    void want_tails(uint64_t streamed);
    void want_few(uint64_t streamed, double most);
    double want_from(uint32_t groups, double most);
    void round_parts(bool indivisible);
    void grow(uint64_t missing);
    void shrink(uint64_t surplus);

    const Shape& shape_;
    std::vector<uint32_t> uses_;   // for each unit
    std::vector<uint64_t> costs_;  // the cost of streaming a page of each unit
    bool uneven_costs_ = false;
    std::vector<uint32_t> by_cost_;   // places, the costliest first
    std::vector<double> link_pages_;  // by place in the order of first use: pages copied during one compute
    std::vector<uint32_t> most_;      // by place: the largest part that is allowed
    std::vector<double> wanted_;      // by place: the part before rounding
    std::vector<uint32_t> parts_;     // by unit
};

}  // namespace stagehand::policy
