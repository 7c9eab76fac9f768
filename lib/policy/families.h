// Families of parts: given a ring, one number, the level, gives every unit a part, so that a search over the
// ring's size alone covers a family.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "policy/shape.h"

namespace stagehand::policy {

enum class Family : uint8_t {
    rare_level,   // level, but only of the units that cost least, as long as those are enough
    rare_paced,   // the same of paced
    level,        // min(size, level): the copies are alike, and so is what the ring must hold
    filled,       // the same, but each leaves as much of the ring free as the link fills during its compute
    paced,        // level plus what the link still has time for before the unit's turn
    half_paced,   // level plus half of that
    by_size,      // in proportion to size
    by_compute,   // in proportion to compute time
    tails,        // last pages, of the units whose last pages hold least first, then evenly more
    whole_units,  // whole units, spread evenly over the step's compute time
};

inline constexpr Family all_families[] = {
    Family::rare_level, Family::rare_paced, Family::level,      Family::filled, Family::paced,
    Family::half_paced, Family::by_size,    Family::by_compute, Family::tails,  Family::whole_units,
};

class PartsMaker {
public:
    explicit PartsMaker(const Shape& shape);

    // Parts that add up to at least `streamed` pages and of which any that are held together fit in the ring;
    // as close to `streamed` as units that must be whole allow. Nothing if the family has no such parts.
    std::optional<std::vector<uint32_t>> make(Family family, uint64_t streamed, uint32_t ring);

    // Whether some units cost more copies a page than others, because they are used more often or have fewer gaps;
    // else the rare families are the plain ones.
    bool uneven_costs() const { return uneven_costs_; }

    // A ring below which no parts fit in `budget` pages along with it; the smallest with which some do,
    // unless units must be whole or several are held at once.
    uint32_t smallest_ring(uint32_t budget) const;

private:
    uint32_t cap_for(uint32_t ring) const;
    void spare_costly(uint64_t available, uint64_t streamed);
    uint64_t most_within(uint32_t cap) const;
    double slope(Family family, size_t place) const;
    double highest_level(Family family, uint32_t ring) const;
    double want(Family family, double level, uint32_t ring);
    bool find_level(Family family, uint64_t streamed, uint32_t ring);
    void want_tails(uint64_t streamed);
    void round_parts(bool indivisible);
    void grow(uint64_t missing);
    void shrink(uint64_t surplus);

    const Shape& shape_;
    std::vector<uint32_t> uses_;  // of each unit
    std::vector<uint64_t> costs_;  // of streaming a page of each unit
    bool uneven_costs_ = false;
    std::vector<uint32_t> by_cost_;  // places, the costliest first
    std::vector<double> link_pages_;  // by place in the order of first use: copied during one compute
    std::vector<uint32_t> most_;      // by place: the largest part allowed
    std::vector<double> wanted_;      // by place: the part before rounding
    std::vector<uint32_t> parts_;     // by unit
};

}  // namespace stagehand::policy
