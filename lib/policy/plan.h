// The vocabulary of planning: what is to be streamed, under which limits, and what a plan says.
//
// Everything in this folder is a pure function of its arguments: no device, no clock, no threads, no I/O, and the same
// answer to the same question on every machine.
//
// What a plan means. Each unit keeps a prefix of its pages resident. The rest, its part, is streamed through one ring
// of pages. Page k of the part always lies at ring page (ring_offset + k) % ring_pages. So several units share a ring
// page, and the unit that was loaded last owns its contents. Loads run on one copy stream in the order of the trace.
// When a use comes up, the pages of its part that another unit owns are copied (all pages of a whole unit, if one is
// missing). This takes at most a few pieces. Each piece waits until the last use of every page that it overwrites has
// ended (pieces.h describes how a load is cut). Units that each step changes are written back after their last use, on
// a stream of its own: the piece also waits for all write-backs until then. A compute starts when the compute before
// has ended and all pages of its unit are present.
#pragma once

#include <cstdint>
#include <span>
#include <variant>
#include <vector>

namespace stagehand::policy {

// Bytes of a unit that need memory but are not copied over the link: bytes that the engine makes on the device, and
// bytes between packed blocks.
struct Gap {
    uint64_t offset = 0;  // in the unit
    uint64_t bytes = 0;
    uint64_t before = 0;  // bytes of all gaps before this one
};

// What is loaded together and has whole pages: one block, or several small ones that are packed.
struct Unit {
    uint64_t bytes = 0;  // in ceil(bytes / page_bytes) pages, of which the last is copied only up to the unit's end
    bool whole = false;  // the resident prefix is nothing or the whole unit
    std::span<const Gap> gaps = {};  // by offset, disjoint, within the bytes; if empty, all bytes are copied
    double slowdown = 1;             // >= 1: a copy takes so many times as long as on the link, for want of its source
    bool changes = false;            // each step changes it, so that its part is written back after its last use

    uint64_t link_bytes() const { return gaps.empty() ? bytes : bytes - gaps.back().before - gaps.back().bytes; }
    // How long the unit's copy takes, as the number of bytes that the link copies meanwhile.
    double link_time() const { return static_cast<double>(link_bytes()) * slowdown; }
};

// One use in the trace, which repeats for ever.
struct Use {
    uint32_t unit = 0;
    uint64_t compute_ns = 0;
};

struct Problem {
    std::span<const Unit> units;
    std::span<const Use> trace;    // may use a unit several times; a unit without use gets no pages
    uint64_t page_bytes = 0;       // > 0
    uint64_t budget_pages = 0;     // resident pages and ring together never exceed it
    uint32_t max_held = 1;         // consecutive uses that are held at once; 0 counts as 1
    double link_bytes_per_ns = 0;  // > 0
    uint64_t copy_latency_ns = 0;  // of each copy command
    bool contiguous = false;       // no part may wrap around the ring's end; every unit must then be whole
    double back_bytes_per_ns = 0;  // of write-backs; 0: they take no time
};

struct UnitPlan {
    uint32_t resident_pages = 0;  // pages [0, resident)
    uint32_t streamed_pages = 0;  // pages [resident, resident + streamed)
    uint32_t ring_offset = 0;     // page resident + k lies at ring page (ring_offset + k) % ring_pages
};

struct Plan {
    std::vector<UnitPlan> units;  // in the order of Problem::units
    uint64_t resident_pages = 0;
    uint32_t ring_pages = 0;
    uint64_t bytes_per_step = 0;  // bytes copied in each steady step
    double step_ns = 0;           // the steady period
};

struct Infeasible {
    uint64_t smallest_budget_pages = 0;  // that make_plan accepts; UINT64_MAX: the problem is malformed
    uint32_t unit = 0;                   // the largest of the units that are held together at that budget
};

// The best plan found: the plan with the shortest steady step, and among plans within 0.2 % of that the one with the
// fewest bytes. The effort is bounded by the size of the problem, not by a clock, so the result is deterministic.
std::variant<Plan, Infeasible> make_plan(const Problem& problem);

}  // namespace stagehand::policy
