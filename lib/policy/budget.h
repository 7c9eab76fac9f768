// Budget arithmetic: how much of a device may be used, and who gets how much of it.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace stagehand::policy {

inline constexpr uint64_t default_margin_bytes = uint64_t{1} << 30;
inline constexpr uint64_t growth_reserve_bytes = uint64_t{512} << 20;

// The automatic budget: what is free, and what is held already, less a margin for others.
uint64_t automatic_budget(uint64_t free_bytes, uint64_t held_bytes = 0,
                          uint64_t margin_bytes = default_margin_bytes);

// How far a budget may grow right now: no further than what the driver says is free, less a reserve, on top
// of what is held, and never below what is held.
uint64_t clamp_growth(uint64_t wanted_bytes, uint64_t held_bytes, uint64_t free_bytes,
                      uint64_t reserve_bytes = growth_reserve_bytes);

// What is there, in whole pages, as far as changes of it are followed: less by a 64th at most, and the same for sizes that are nearly alike.
uint64_t noticed(uint64_t bytes, uint64_t page_bytes);

struct Request {
    uint64_t min_pages = 0;
    uint64_t want_pages = 0;  // the minimum at least counts as wanted
    double weight = 1;        // negative, infinite or not a number counts as 0
};

// Gives everyone its minimum and shares the rest in proportion to the weights, to nobody more than it wants.
// All of the rest is handed out as long as someone wants more; those of weight 0 share what the others leave.
// Whole pages, at most the total, the same for the same requests. Nothing if the minima exceed the total.
std::optional<std::vector<uint64_t>> divide(uint64_t total_pages, std::span<const Request> requests);

}  // namespace stagehand::policy
