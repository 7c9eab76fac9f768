// Who gets how much of a device's budget when several models share it: first what each holds for certain (what it needs to run, what is
// protected, reserved, or lent to it as a guest), then the rest where it saves most time, then what guests take from the others.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "policy/division.h"
#include "policy/victims.h"

namespace stagehand::policy {

// What one model asks of the device.
struct Claim {
    bool runs = false;              // it has asked for memory; else only what is kept and reserved counts
    bool guest = false;
    uint64_t least_pages = 0;       // it cannot run with less
    uint64_t wanted_pages = 0;      // it gains nothing beyond
    uint64_t kept_pages = 0;        // protected, and held
    uint64_t reserved_pages = 0;
    Priority priority = Priority::none;   // of the reservation
    uint64_t guest_pages = 0;       // let in with so much
    uint64_t workspace_pages = 0;   // taken by its engine beside that
    double steps_per_second = 0;    // 0: not known, or it makes none
    double next_step_ns = 0;        // counted from now; infinite: it has made none
    std::span<const CurvePoint> curve;
    std::span<const Part> parts;    // what it could give up
};

struct Floors {
    std::vector<uint64_t> pages;      // for certain, per claim
    std::vector<uint64_t> reserved;   // of its reservation, what is in force
    uint64_t headroom_pages = 0;      // of `pages` below, what nobody has for certain
};

// What each claim holds for certain. Secondary reservations give way where not all fits, that of the model whose next step is furthest
// away first, as far as needed. Nothing when even then it does not fit.
std::optional<Floors> floors(uint64_t pages, std::span<const Claim> claims);

// The claims as stakes in the division: guests have none. Who has made no steps yet counts as used as often as whoever is used most.
std::vector<Stake> stakes(std::span<const Claim> claims, const Floors& floors);

// The shares of the models that are no guests, as if there were no guests: the rest by marginal value. `pages` covers their floors.
std::vector<uint64_t> divide(uint64_t pages, std::span<const Claim> claims, const Floors& floors);

// The shares when guests and their workspaces have got theirs: out of what is free, then from the others' part above their floors, those
// pages first that are used furthest in the future. `pages` covers all floors and workspaces.
std::vector<uint64_t> lend(uint64_t pages, std::span<const uint64_t> divided, std::span<const Claim> claims, const Floors& floors);

}  // namespace stagehand::policy
