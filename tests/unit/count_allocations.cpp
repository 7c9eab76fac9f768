#include "count_allocations.h"

#include <cstdlib>
#include <new>

namespace stagehand::test {

std::atomic<bool> count_allocations = false;
std::atomic<uint64_t> allocations = 0;
std::atomic<bool> fail_next_allocation = false;

}  // namespace stagehand::test

void* operator new(size_t bytes) {
    using namespace stagehand::test;
    if (fail_next_allocation.load(std::memory_order_relaxed) && fail_next_allocation.exchange(false))
        throw std::bad_alloc();
    if (count_allocations.load(std::memory_order_relaxed)) allocations++;
    if (void* const memory = std::malloc(bytes ? bytes : 1)) return memory;
    throw std::bad_alloc();
}
void* operator new(size_t bytes, const std::nothrow_t&) noexcept {
    using namespace stagehand::test;
    if (count_allocations.load(std::memory_order_relaxed)) allocations++;
    return std::malloc(bytes ? bytes : 1);
}
void* operator new(size_t bytes, std::align_val_t alignment) {
    using namespace stagehand::test;
    if (count_allocations.load(std::memory_order_relaxed)) allocations++;
    const size_t unit = static_cast<size_t>(alignment);
    if (void* const memory = std::aligned_alloc(unit, (bytes + unit - 1) / unit * unit)) return memory;
    throw std::bad_alloc();
}
void operator delete(void* memory, const std::nothrow_t&) noexcept { std::free(memory); }
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, size_t) noexcept { std::free(memory); }
void operator delete(void* memory, std::align_val_t) noexcept { std::free(memory); }
void operator delete(void* memory, size_t, std::align_val_t) noexcept { std::free(memory); }
