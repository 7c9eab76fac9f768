#include "policy/layout.h"

#include <algorithm>
#include <vector>

#include "policy/programme.h"

namespace stagehand::policy {

namespace {

// The next position at which the pages are contiguous, if they must be.
uint64_t piece_at(const Shape& shape, uint64_t position, uint32_t pages, uint32_t ring) {
    const bool fits = !shape.problem->contiguous || ring == 0 || position % ring + pages <= ring;
    return fits ? position : (position / ring + 1) * ring;
}

void pack(const Shape& shape, uint32_t ring, std::span<UnitPlan> units) {
    uint64_t position = 0;
    for (uint32_t u : shape.order) {
        position = piece_at(shape, position, units[u].streamed_pages, ring);
        units[u].ring_offset = ring ? static_cast<uint32_t>(position % ring) : 0;
        position += units[u].streamed_pages;
    }
}

// Places the parts so that they go round the ring a whole number of times in a step.
void spread(const Shape& shape, uint32_t ring, std::span<UnitPlan> units) {
    uint64_t streamed = 0;
    for (uint32_t u : shape.order) streamed += units[u].streamed_pages;
    if (streamed == 0) return pack(shape, ring, units);
    const uint64_t left_out = (ring - streamed % ring) % ring;
    uint64_t position = 0;
    for (uint32_t u : shape.order) {
        uint64_t skipped = position * left_out / streamed;
        units[u].ring_offset = static_cast<uint32_t>((position + skipped) % ring);
        position += units[u].streamed_pages;
    }
}

// Makes each part contiguous. A part that would wrap around the ring's end is pushed back to end there, over the part
// before it, so that no page is left out.
void push_back(const Shape& shape, uint32_t ring, std::span<UnitPlan> units) {
    uint32_t position = 0;
    for (uint32_t u : shape.order) {
        const uint32_t pages = units[u].streamed_pages;
        if (pages == 0) continue;
        if (position == ring) position = 0;
        units[u].ring_offset = std::min(position, ring - pages);
        position = units[u].ring_offset + pages;
    }
}

// The places that the units held along with one unit have already taken.
class Neighbours {
public:
    Neighbours(const Shape& shape, std::span<const UnitPlan> units)
        : shape_(shape), units_(units), first_use_(units.size() + 1), placed_(units.size()) {
        std::span<const Use> trace = shape.problem->trace;
        for (const Use& use : trace) first_use_[use.unit + 1]++;
        for (size_t u = 0; u < units.size(); u++) first_use_[u + 1] += first_use_[u];
        uses_.resize(trace.size());
        std::vector<uint32_t> next(first_use_.begin(), first_use_.end() - 1);
        for (uint32_t j = 0; j < trace.size(); j++) uses_[next[trace[j].unit]++] = j;
    }

    struct Place {
        uint32_t begin, pages;
    };

    void placed(uint32_t unit) { placed_[unit] = true; }

    const std::vector<Place>& of(uint32_t unit) {
        places_.clear();
        std::span<const Use> trace = shape_.problem->trace;
        const uint32_t uses = shape_.uses();
        for (uint32_t k = first_use_[unit]; k < first_use_[unit + 1]; k++)
            for (uint32_t d = 1; d < shape_.held; d++) {
                add(unit, trace[(uses_[k] + d) % uses].unit);
                add(unit, trace[(uses_[k] + uses - d) % uses].unit);
            }
        return places_;
    }

private:
    void add(uint32_t unit, uint32_t other) {
        if (other == unit || !placed_[other] || units_[other].streamed_pages == 0) return;
        places_.push_back({units_[other].ring_offset, units_[other].streamed_pages});
    }

    const Shape& shape_;
    std::span<const UnitPlan> units_;
    std::vector<uint32_t> first_use_;  // the uses of unit u are uses_[first_use_[u]] up to
    std::vector<uint32_t> uses_;       // uses_[first_use_[u + 1]]
    std::vector<bool> placed_;
    std::vector<Place> places_;
};

// The place that pages [begin, begin + pages) of the ring overlap, or null.
const Neighbours::Place* met(const std::vector<Neighbours::Place>& places, uint64_t begin, uint32_t pages,
                             uint32_t ring) {
    for (const Neighbours::Place& place : places) {
        uint64_t ahead = (place.begin + ring - begin % ring) % ring;  // from this begin to the place's begin
        uint64_t behind = (begin % ring + ring - place.begin) % ring;
        if (ahead < pages || behind < place.pages) return &place;
    }
    return nullptr;
}

bool rotate(const Shape& shape, uint32_t ring, std::span<UnitPlan> units) {
    Neighbours neighbours(shape, units);
    uint64_t position = 0;
    for (uint32_t u : shape.order) {
        uint32_t pages = units[u].streamed_pages;
        if (pages == 0) continue;
        const auto& places = neighbours.of(u);
        uint64_t begin = piece_at(shape, position, pages, ring);
        while (const Neighbours::Place* place = met(places, begin, pages, ring)) {
            uint64_t end = (uint64_t{place->begin} + place->pages) % ring;
            uint64_t step = (end + ring - begin % ring) % ring;
            if (step == 0 || begin + step - position >= ring) return false;
            begin = piece_at(shape, begin + step, pages, ring);
            if (begin - position >= ring) return false;
        }
        units[u].ring_offset = static_cast<uint32_t>(begin % ring);
        neighbours.placed(u);
        position = begin + pages;
    }
    return true;
}

bool stack_from_both_ends(const Shape& shape, uint32_t ring, std::span<UnitPlan> units) {
    Neighbours neighbours(shape, units);
    for (uint32_t u : shape.order) {
        uint32_t pages = units[u].streamed_pages;
        if (pages == 0) continue;
        const auto& places = neighbours.of(u);
        uint64_t begin = 0;
        if (met(places, 0, pages, ring)) begin = ring - pages;
        if (met(places, begin, pages, ring)) {
            begin = ring;
            for (const Neighbours::Place& place : places) {
                uint64_t end = uint64_t{place.begin} + place.pages;
                if (end + pages <= ring && end < begin && !met(places, end, pages, ring)) begin = end;
            }
            if (begin == ring) return false;
        }
        units[u].ring_offset = static_cast<uint32_t>(begin);
        neighbours.placed(u);
    }
    return true;
}

}  // namespace

bool lay_out(const Shape& shape, Layout layout, uint32_t ring, std::span<UnitPlan> units) {
    switch (layout) {
        case Layout::packed:
            pack(shape, ring, units);
            return true;
        case Layout::spread:
            shape.problem->contiguous ? push_back(shape, ring, units) : spread(shape, ring, units);
            return true;
        case Layout::rotating:
            return rotate(shape, ring, units);
        case Layout::two_ended:
            return stack_from_both_ends(shape, ring, units);
    }
    return false;
}

TightRing tightest_ring(const Shape& shape) {
    const WindowNeed widest = widest_window(shape, shape.pages);
    if (shape.held == 1 || widest.pages == shape.total_pages)
        return {static_cast<uint32_t>(widest.pages), Layout::packed};
    std::vector<UnitPlan> units(shape.pages.size());
    for (uint32_t u : shape.order) units[u].streamed_pages = shape.pages[u];
    ProgrammeTracer tracer(shape);
    StepProgramme steady;
    auto layout_for = [&](uint64_t ring) -> const Layout* {
        static constexpr Layout all[] = {Layout::packed, Layout::spread, Layout::two_ended, Layout::rotating};
        for (const Layout& layout : all)
            if (lay_out(shape, layout, static_cast<uint32_t>(ring), units) &&
                tracer.trace(units, static_cast<uint32_t>(ring), steady))
                return &layout;
        return nullptr;
    };
    if (const Layout* layout = layout_for(widest.pages)) return {static_cast<uint32_t>(widest.pages), *layout};
    // Increases the ring until one fits (at the latest when all units lie side by side), then halves the last step.
    uint64_t fails = widest.pages;
    uint64_t fits = shape.total_pages;
    Layout found = Layout::packed;
    for (uint64_t step = 1; fails + step < shape.total_pages; step *= 2) {
        if (const Layout* layout = layout_for(fails + step)) {
            fits = fails + step;
            found = *layout;
            break;
        }
        fails += step;
    }
    while (fits - fails > 1) {
        uint64_t middle = fails + (fits - fails) / 2;
        if (const Layout* layout = layout_for(middle)) {
            fits = middle;
            found = *layout;
        } else {
            fails = middle;
        }
    }
    return {static_cast<uint32_t>(fits), found};
}

}  // namespace stagehand::policy
