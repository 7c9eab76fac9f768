// Budget arithmetic: how much of a device may be used, and how much of it each requester gets.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace stagehand::policy {

inline constexpr uint64_t default_margin_bytes = uint64_t{1} << 30;
inline constexpr uint64_t growth_reserve_bytes = uint64_t{512} << 20;

// The automatic budget: the free bytes plus the bytes that are held already, less a margin for others.
uint64_t automatic_budget(uint64_t free_bytes, uint64_t held_bytes = 0, uint64_t margin_bytes = default_margin_bytes);

// How far a budget may grow now: up to the held bytes plus the bytes that the driver reports as free, less a reserve.
// The result is never below the held bytes.
uint64_t clamp_growth(uint64_t wanted_bytes, uint64_t held_bytes, uint64_t free_bytes,
                      uint64_t reserve_bytes = growth_reserve_bytes);

// The present bytes in whole pages, rounded so that small changes do not count. The result is less by a 64th at most,
// and it is the same for sizes that are nearly equal.
uint64_t noticed(uint64_t bytes, uint64_t page_bytes);

struct Request {
    uint64_t min_pages = 0;
    uint64_t want_pages = 0;  // counts as min_pages if it is less
    double weight = 1;        // negative, infinite or not a number counts as 0
};

// Gives each request its minimum, and shares the rest in proportion to the weights. No request gets more than it wants.
// All of the rest is handed out as long as a request wants more. Requests of weight 0 share what the others leave. The
// result is in whole pages, adds up to at most the total, and is the same for the same requests. Nothing if the minima
// exceed the total.
std::optional<std::vector<uint64_t>> divide(uint64_t total_pages, std::span<const Request> requests);

}  // namespace stagehand::policy
