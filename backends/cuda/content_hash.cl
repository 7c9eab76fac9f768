// The hash of backends/support/content_hash.h, by 256 threads for each range. make_programs.py compiles it.
#define LANES 256

struct range {
    ulong address, bytes;
};

static ulong mix(ulong x) {
    x = (x ^ (x >> 33)) * 0xff51afd7ed558ccdUL;
    x = (x ^ (x >> 33)) * 0xc4ceb9fe1a85ec53UL;
    return x ^ (x >> 33);
}

static void take(ulong* a, ulong* b, ulong2 words) {
    *a = (*a ^ words.x) * 0x9e3779b185ebca87UL;
    *b = (*b ^ words.y) * 0xc2b2ae3d27d4eb4fUL;
    *a ^= *a >> 32;
    *b ^= *b >> 29;
    *a += *b;
    *b ^= *a;
}

kernel void sh_content_hash(global const struct range* ranges, global ulong2* digests) {
    local ulong2 sums[LANES];
    const uint lane = __nvvm_read_ptx_sreg_tid_x();
    const uint index = __nvvm_read_ptx_sreg_ctaid_x();
    global const ulong2* from = (global const ulong2*)ranges[index].address + lane;
    const ulong rows = ranges[index].bytes / (16 * LANES);
    ulong a = (lane + 1) * 0x165667b19e3779f9UL, b = rows ^ mix(lane + 1);
    ulong row = 0;
    // Eight loads are under way before the first is used.
    for (; row + 8 <= rows; row += 8, from += 8 * LANES) {
        ulong2 words[8];
#pragma unroll
        for (int i = 0; i < 8; ++i) words[i] = from[i * LANES];
#pragma unroll
        for (int i = 0; i < 8; ++i) take(&a, &b, words[i]);
    }
    for (; row < rows; ++row, from += LANES) take(&a, &b, *from);
    a = mix(a);
    b = mix(b ^ a);
    a = mix(a + b);
    sums[lane] = (ulong2)(a, b);
    for (uint left = LANES / 2; left > 0; left /= 2) {
        __syncthreads();
        if (lane < left) sums[lane] += sums[lane + left];
    }
    if (lane == 0) digests[index] = sums[0];
}
