// The vocabulary of planning: what is to be streamed, under which limits, and what a plan says.
//
// Everything in this folder is a pure function of its arguments: no device, no clock, no threads, no I/O, and
// the same answer for the same question on every machine.
//
// What a plan means. Each unit keeps a prefix of its pages resident. The rest, its part, is streamed through
// one ring of pages: page k of the part lies for ever at ring page (ring_offset + k) % ring_pages, so several
// units share a ring page and the one that was loaded last owns its contents. Loads run on one copy stream in
// the order of the trace. When a use comes up, those pages of its part are copied that another unit owns by
// then (all pages of a whole unit, if one is missing), in at most a few pieces, each of which waits until the
// last use of every page that it overwrites has ended (pieces.h says how a load is cut). A compute starts
// when the one before has ended and all pages of its unit are there.
#pragma once

#include <cstdint>
#include <span>
#include <variant>
#include <vector>

namespace stagehand::policy {

// Bytes of a unit that need memory and come over no link: what the engine makes on the device, and what lies
// between packed blocks.
struct Gap {
    uint64_t offset = 0;  // in the unit
    uint64_t bytes = 0;
    uint64_t before = 0;  // bytes of all gaps before this one
};

// What is loaded together and owns whole pages: one block, or several small ones packed.
struct Unit {
    uint64_t bytes = 0;  // in ceil(bytes / page_bytes) pages, the last copied only as far as the bytes go
    bool whole = false;  // the resident prefix is nothing or all
    std::span<const Gap> gaps = {};  // by offset, disjoint, inside the bytes; none: all bytes are copied

    uint64_t link_bytes() const { return gaps.empty() ? bytes : bytes - gaps.back().before - gaps.back().bytes; }
};

// One step of the trace, which repeats for ever.
struct Use {
    uint32_t unit = 0;
    uint64_t compute_ns = 0;
};

struct Problem {
    std::span<const Unit> units;
    std::span<const Use> trace;    // may use a unit several times; one that it leaves out gets no pages
    uint64_t page_bytes = 0;       // > 0
    uint64_t budget_pages = 0;     // residents and ring together never exceed it
    uint32_t max_held = 1;         // consecutive uses that are held at once; 0 counts as 1
    double link_bytes_per_ns = 0;  // > 0
    uint64_t copy_latency_ns = 0;  // of each copy command
    bool contiguous = false;       // no part may go round the ring's end; then every unit must be whole
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
    uint64_t bytes_per_step = 0;  // copied in each steady step
    double step_ns = 0;           // the steady period
};

struct Infeasible {
    uint64_t smallest_budget_pages = 0;  // that make_plan accepts; UINT64_MAX: the problem is malformed
    uint32_t unit = 0;                   // that asks for it: the largest of those held together there
};

// The best plan found: the shortest steady step, and among plans within 0.2 % of that the fewest bytes. Its
// effort is bounded by the size of the problem, not by a clock, so it is deterministic.
std::variant<Plan, Infeasible> make_plan(const Problem& problem);

}  // namespace stagehand::policy
