// Families of parts: with one number, the level, each gives every unit a part, so that a search over the ring's size alone
// covers them.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "shape.h"

namespace stagehand::policy {

enum class Family : uint8_t {
    level,         // min(size, level): the copies are alike, and so is what the ring must hold
    complement,    // level less half of what the link copies during the unit's own compute
    complement_full,  // level less all of it: part and prefetch together fill the ring at every use
    by_size,       // in proportion to size
    by_compute,    // in proportion to compute time, so that each copy takes as long as a compute
    whole_units,   // whole units, spread evenly over the step's compute time
};

inline constexpr Family all_families[] = {Family::level,   Family::complement, Family::complement_full,
                                          Family::by_size, Family::by_compute, Family::whole_units};

// The parts of a family that add up to at least `streamed` pages, none larger than `cap`; as close to it as units that must be
// whole allow. Nothing if the units do not have that many.
class PartsMaker {
public:
    explicit PartsMaker(const Shape& shape);

    std::optional<std::vector<uint32_t>> make(Family family, uint64_t streamed, uint32_t cap);

    // The largest cap on parts with which any units held together fit in a ring.
    uint32_t cap_for(uint32_t ring) const;

private:
    struct Line {  // a part is slope * level - less, within [0, most]
        double slope, less;
    };

    void draw_lines(Family family);
    double level_for(uint64_t streamed) const;
    void round_parts(double level, bool indivisible);
    void grow(uint64_t missing);
    void shrink(uint64_t surplus);

    const Shape& shape_;
    std::vector<double> link_pages_;  // by place in the order of first use: what the link copies during one compute
    std::vector<Line> lines_;         // by place
    std::vector<uint32_t> most_;      // by place: the largest part allowed
    std::vector<uint32_t> parts_;     // by unit
};

}  // namespace stagehand::policy
