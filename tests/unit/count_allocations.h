// Counts the allocations of all threads of the test program while counting is switched on. Can make one of them fail.
#pragma once

#include <atomic>
#include <cstdint>

namespace stagehand::test {

extern std::atomic<bool> count_allocations;
extern std::atomic<uint64_t> allocations;
extern std::atomic<bool> fail_next_allocation;  // of any thread

}  // namespace stagehand::test
