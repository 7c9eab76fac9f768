// The division of a device's budget among several models. First each model gets what it holds for certain: what it
// needs to run, and what is protected, reserved, or lent to it as a guest. Then the rest goes where it saves most time.
// Then guests take their memory from the others.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "policy/division.h"
#include "policy/victims.h"

namespace stagehand::policy {

// The claim of one model on the device.
struct Claim {
    bool runs = false;  // the model has asked for memory; if false, only kept and reserved pages count
    bool guest = false;
    uint64_t least_pages = 0;      // the model cannot run with less
    uint64_t wanted_pages = 0;     // the model gains nothing from more
    uint64_t protected_pages = 0;  // protected pages that it holds
    uint64_t kept_pages = 0;       // those that count, because they were not promised to others before
    uint64_t reserved_pages = 0;
    Priority priority = Priority::none;  // of the reservation
    uint64_t guest_pages = 0;            // pages with which the guest was let in
    uint64_t workspace_pages = 0;        // pages that its engine takes besides these
    double steps_per_second = 0;         // 0: not known, or the model makes no steps
    double next_step_ns = 0;             // counted from now; infinite: the model has made no step
    std::span<const CurvePoint> curve;
    std::span<const Part> parts;  // what the model could give up
};

struct Floors {
    std::vector<uint64_t> pages;     // pages that each claim holds for certain
    std::vector<uint64_t> reserved;  // for each claim, the part of its reservation that is in force
    uint64_t headroom_pages = 0;     // the pages that no claim holds for certain
};

// The pages that each claim holds for certain. If not all fit, secondary reservations are given up as far as needed,
// starting with the model whose next step is furthest away. Nothing if the rest does not fit either.
std::optional<Floors> floors(uint64_t pages, std::span<const Claim> claims);

// The claims as stakes in the division. Guests have empty stakes. A model without steps counts as used as often as the
// most used model.
std::vector<Stake> stakes(std::span<const Claim> claims, const Floors& floors);

// The shares of the models that are no guests, as if there were no guests. The rest beyond the floors is divided by
// marginal value. `pages` must cover the floors.
std::vector<uint64_t> divide(uint64_t pages, std::span<const Claim> claims, const Floors& floors);

// The shares after guests and their workspaces have got their pages. These come from free pages first, then from the
// others' pages above their floors, starting with those whose next use is furthest in the future. `pages` must cover
// all floors and workspaces.
std::vector<uint64_t> lend(uint64_t pages, std::span<const uint64_t> divided, std::span<const Claim> claims,
                           const Floors& floors);

}  // namespace stagehand::policy
