/* The loop in C: see pairs.h. */
#include "pairs.h"

uint64_t pairs_in_c(sh_runtime* runtime, const sh_block* blocks, uint64_t count, uint64_t pairs) {
    uint64_t sum = 0;
    for (uint64_t i = 0; i < pairs; ++i) {
        sh_view view = {.struct_size = sizeof(sh_view)};
        if (sh_acquire(runtime, blocks[i % count], SH_STREAM_HOST, 0, &view) < 0) return 0;
        sum += (uintptr_t)view.address;
        if (sh_release(runtime, blocks[i % count], SH_STREAM_HOST) < 0) return 0;
    }
    return sum;
}
