// The 128-bit hash of contents. The GPU's program computes the same (backends/cuda/content_hash.cl).
//
// 256 lanes take turns at the 16-byte words of a range. Each lane keeps two numbers. One step of a lane maps different
// words to different numbers, and so do all later steps: two ranges that differ in the words of a single lane never
// have the same hash. The lanes' numbers are mixed and added. For other differences that nobody made on purpose, the
// chance of the same hash is about 2^-128 for each range. The hash is no protection against contents made on purpose.
#pragma once

#include <cstdint>
#include <cstring>

#include <stagehand/backend.h>

namespace stagehand::support {

constexpr uint64_t kHashLanes = 256;

inline uint64_t hash_mix(uint64_t x) {
    x = (x ^ (x >> 33)) * 0xff51afd7ed558ccdU;
    x = (x ^ (x >> 33)) * 0xc4ceb9fe1a85ec53U;
    return x ^ (x >> 33);
}

// `bytes` is a multiple of 4096.
inline sh_backend_digest content_hash(const void* data, uint64_t bytes) {
    const char* at = static_cast<const char*>(data);
    const uint64_t rows = bytes / (16 * kHashLanes);
    uint64_t a[kHashLanes], b[kHashLanes];
    for (uint64_t lane = 0; lane < kHashLanes; lane++) {
        a[lane] = (lane + 1) * 0x165667b19e3779f9U;
        b[lane] = rows ^ hash_mix(lane + 1);
    }
    for (uint64_t row = 0; row < rows; row++) {
        for (uint64_t lane = 0; lane < kHashLanes; lane++, at += 16) {
            uint64_t words[2];
            std::memcpy(words, at, sizeof words);
            a[lane] = (a[lane] ^ words[0]) * 0x9e3779b185ebca87U;
            b[lane] = (b[lane] ^ words[1]) * 0xc2b2ae3d27d4eb4fU;
            a[lane] ^= a[lane] >> 32;
            b[lane] ^= b[lane] >> 29;
            a[lane] += b[lane];
            b[lane] ^= a[lane];
        }
    }
    sh_backend_digest digest = {{0, 0}};
    for (uint64_t lane = 0; lane < kHashLanes; lane++) {
        const uint64_t first = hash_mix(a[lane]), second = hash_mix(b[lane] ^ first);
        digest.words[0] += hash_mix(first + second);
        digest.words[1] += second;
    }
    return digest;
}

}  // namespace stagehand::support
