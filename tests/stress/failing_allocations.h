// Lets chosen allocations of the library fail: those of its own threads, and those that the test's thread makes inside a call. Allocations with
// the same callers are one site.
#pragma once

#include <atomic>
#include <cstdint>

namespace stagehand::test {

constexpr int kCallers = 20;
constexpr size_t kSites = 1 << 15;

struct AllocationSite {
    uint64_t hash = 0;    // of its callers; 0: none
    uint64_t times = 0;   // it was met
};

// Lies in memory that processes share: how far one of them came is known to the other when it has died.
struct AllocationProgress {
    std::atomic<uint64_t> failed{0};
    std::atomic<const char*> call{""};     // of the interface, which the test's thread is in or was in last
    // The first that failed: in which call the test's thread was, on which thread, and its callers.
    const char* failed_in = "";
    char failed_on[16] = {};
    void* callers[kCallers] = {};
    int depth = 0;
    AllocationSite sites[kSites];          // filled while allocations are counted
};

// What is to fail: from the `at`th allocation of a site on, `count` of them, wherever.
struct AllocationFailure {
    uint64_t site = 0;   // a hash; 0: nothing fails, and sites are counted
    uint64_t at = 1;
    uint64_t count = 1;
};

void fail_allocations(AllocationProgress* progress, const AllocationFailure& failure);
// None fails, and none is counted.
void let_allocations_be();

// Says that the calling thread is the test's: what it allocates outside of calls is its own.
void this_is_the_tests_thread();

// On the test's thread: what is allocated meanwhile is the library's.
class InTheLibrary {
public:
    InTheLibrary();
    ~InTheLibrary();
    InTheLibrary(const InTheLibrary&) = delete;
    InTheLibrary& operator=(const InTheLibrary&) = delete;
};

}  // namespace stagehand::test
