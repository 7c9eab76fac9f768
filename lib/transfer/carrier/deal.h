// Deals the bytes of a copy out to several links that carry them at once.
#pragma once

#include <cstdint>
#include <span>

namespace stagehand::transfer {

struct DealtLink {
    double bytes_per_ns = 0;  // 0: the link gets nothing
    double free_at_ns = 0;    // when it has carried what it was given before
    uint64_t bytes = 0;       // what it was dealt
};

// Divides `bytes` so that all links that get any end at the same time, which is the earliest: with the end T, link i
// gets bytes_per_ns(i) * (T - free_at_ns(i)). Shares are multiples of `grain`, except for the first link's, and a link
// gets nothing rather than less than `least`. Advances free_at_ns by what each link was dealt. The first link takes
// what is left by rounding, and it must have a speed.
void deal(uint64_t bytes, uint64_t grain, uint64_t least, double now_ns, std::span<DealtLink> links);

}  // namespace stagehand::transfer
