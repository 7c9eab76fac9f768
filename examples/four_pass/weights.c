/* The weights of a model on the host: their memory and their contents. */
#include "weights.h"

#include <string.h>
#include <sys/mman.h>

bool weights_allocate(struct machine* machine, uint64_t bytes, void** out, struct error* error) {
    if (!machine->virtual_time)
        return succeeded(sh_host_alloc(machine->device, bytes, out, NULL), "memory for weights", error);
    void* const addresses = mmap(NULL, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (addresses == MAP_FAILED) return error_out_of_memory(error);
    *out = addresses;
    return true;
}

void weights_free(struct machine* machine, void* weights, uint64_t bytes) {
    if (weights == NULL) return;
    if (machine->virtual_time)
        munmap(weights, bytes);
    else
        sh_host_free(machine->device, weights);
}

/** Returns the eight bytes at a position: a counter, mixed so that each bit depends on all bits. */
static uint64_t word_at(uint64_t seed, uint64_t place) {
    uint64_t word = (seed << 40) + place;

    word = (word ^ (word >> 31)) * 0x7fb5d329728ea185;
    word = (word ^ (word >> 27)) * 0x81dadef4bc2dd44d;
    return word ^ (word >> 33);
}

void weights_fill(void* weights, uint64_t bytes, uint64_t seed) {
    for (uint64_t i = 0; i < bytes; i += sizeof(uint64_t)) {
        const uint64_t word = word_at(seed, i);
        memcpy((char*)weights + i, &word, bytes - i < sizeof word ? bytes - i : sizeof word);
    }
}

bool weights_are(const void* weights, uint64_t bytes, uint64_t seed) {
    for (uint64_t i = 0; i < bytes; i += sizeof(uint64_t)) {
        const uint64_t word = word_at(seed, i);
        if (memcmp((const char*)weights + i, &word, bytes - i < sizeof word ? bytes - i : sizeof word) != 0)
            return false;
    }
    return true;
}
