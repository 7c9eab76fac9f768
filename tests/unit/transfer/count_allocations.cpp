#include "count_allocations.h"

#include <cstdlib>
#include <new>

namespace stagehand::transfer::test {

std::atomic<bool> count_allocations = false;
std::atomic<uint64_t> allocations = 0;

}  // namespace stagehand::transfer::test

void* operator new(size_t bytes) {
    using namespace stagehand::transfer::test;
    if (count_allocations.load(std::memory_order_relaxed)) allocations++;
    if (void* const memory = std::malloc(bytes)) return memory;
    throw std::bad_alloc();
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, size_t) noexcept { std::free(memory); }
