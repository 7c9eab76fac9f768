// Counts the allocations of all threads of the test program while counting is switched on.
#pragma once

#include <atomic>
#include <cstdint>

namespace stagehand::test {

extern std::atomic<bool> count_allocations;
extern std::atomic<uint64_t> allocations;

}  // namespace stagehand::test
