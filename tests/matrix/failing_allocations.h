// Makes chosen allocations of the library fail: those of its own threads, and those of the test's thread inside a call.
// Allocations with the same callers are one site.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

namespace stagehand::test {

constexpr int kCallers = 20;
constexpr size_t kSites = 1 << 15, kCalls = 256;

// Callers are identified by their positions in the files that they were loaded from, so a site is the same in every
// process of a build.
struct AllocationSite {
    uint64_t hash = 0;    // of its callers; 0: none
    uint64_t caller = 0;  // the nearest of them
    uint64_t times = 0;   // it was met
    uint64_t number = 0;  // the order in which sites were met, from 0 on
};

// Lies in memory that processes share, so the parent can read the progress of a child that died.
struct AllocationProgress {
    std::atomic<uint64_t> failed{0};
    std::atomic<const char*> call{""};  // of the interface, which the test's thread is in or was in last
    // The first that failed: in which call the test's thread was, on which thread, and its callers.
    const char* failed_in = "";
    char failed_on[16] = {};
    void* callers[kCallers] = {};
    int depth = 0;
    AllocationSite sites[kSites];  // filled while allocations are counted
    uint64_t met = 0;              // sites so far
    // The calls of the interface that were made, in the order of the first ones.
    const char* called[kCalls] = {};
    uint64_t calls = 0;                   // into the backend whose calls are to fail
    std::atomic<uint64_t> cell{0};        // that runs
    uint64_t met_failures = 0, lost = 0;  // cells
};

// Says which allocations fail: `count` allocations anywhere, beginning with the `at`th allocation of a site.
struct AllocationFailure {
    uint64_t site = 0;    // a hash; 0: nothing fails, and sites are counted
    uint64_t caller = 0;  // of the site
    uint64_t at = 1;
    uint64_t count = 1;
};

// Callers count up to `outermost`, which is a position in one of them.
void fail_allocations(AllocationProgress* progress, const AllocationFailure& failure, const void* outermost);
// No allocation fails or is counted after this.
void let_allocations_be();

// Marks the calling thread as the test's thread. Its allocations outside of calls are not the library's.
void this_is_the_tests_thread();

// Where calls are noted.
void note_calls(AllocationProgress* progress);

// On the test's thread: allocations in this object's lifetime are the library's, in a call of this name.
class InTheLibrary {
public:
    explicit InTheLibrary(const char* call);
    ~InTheLibrary();
    InTheLibrary(const InTheLibrary&) = delete;
    InTheLibrary& operator=(const InTheLibrary&) = delete;
};

}  // namespace stagehand::test
