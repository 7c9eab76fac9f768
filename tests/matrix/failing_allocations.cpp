#include "failing_allocations.h"

#include <execinfo.h>
#include <link.h>
#include <sys/prctl.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <iterator>
#include <mutex>
#include <new>

namespace stagehand::test {
namespace {

constinit thread_local bool tests_thread = false;
constinit thread_local bool in_the_library = false;

// Taken by one thread at a time.
struct Plan {
    std::mutex mutex;
    AllocationProgress* progress = nullptr;
    AllocationFailure failure;
    const void* outermost = nullptr;
    uint64_t met = 0;               // the site was
    std::atomic<uint64_t> left{0};  // the number of allocations that still fail
};
Plan plan;
std::atomic<bool> active{false};
AllocationProgress* noted = nullptr;

// A loaded file, as far as this thread has asked for it.
struct Module {
    uintptr_t begin = 0, end = 0;
};
constinit thread_local Module modules[64] = {};
constinit thread_local size_t module_count = 0;

int note_module(dl_phdr_info* info, size_t, void*) {
    Module module{UINTPTR_MAX, 0};
    for (int i = 0; i < info->dlpi_phnum; i++) {
        const auto& part = info->dlpi_phdr[i];
        if (part.p_type != PT_LOAD) continue;
        module.begin = std::min<uintptr_t>(module.begin, info->dlpi_addr + part.p_vaddr);
        module.end = std::max<uintptr_t>(module.end, info->dlpi_addr + part.p_vaddr + part.p_memsz);
    }
    if (module_count < std::size(modules)) modules[module_count++] = module;
    return 0;
}

// Returns the address's position in its file, because the position in memory may differ in the next process.
uint64_t place_of(const void* address) {
    const auto at = reinterpret_cast<uintptr_t>(address);
    for (const bool again : {false, true}) {
        for (size_t i = 0; i < module_count; i++)
            if (at >= modules[i].begin && at < modules[i].end) return at - modules[i].begin;
        if (again) break;
        module_count = 0;
        dl_iterate_phdr(note_module, nullptr);
    }
    return at;
}

uint64_t hash_of(void* const* callers, int depth) {
    uint64_t hash = 14695981039346656037u;
    for (int i = 0; i < depth && callers[i] != plan.outermost; i++)
        hash = (hash ^ place_of(callers[i])) * 1099511628211u;
    return hash | 1;
}

void count(AllocationProgress& progress, uint64_t hash, uint64_t caller) {
    for (size_t i = hash % kSites;; i = (i + 1) % kSites) {
        AllocationSite& site = progress.sites[i];
        if (site.hash && site.hash != hash) continue;
        if (!site.hash) site.number = progress.met++;
        site.hash = hash;
        site.caller = caller;
        site.times++;
        return;
    }
}

void note(AllocationProgress& progress, void* const* callers, int depth) {
    if (progress.failed++) return;
    progress.failed_in = progress.call.load();
    prctl(PR_GET_NAME, progress.failed_on);
    std::copy(callers, callers + depth, progress.callers);
    progress.depth = depth;
}

// Inlined, so that the depth of what it adds to the callers is known. All callers are looked at where the nearest is
// the one that is looked for: that takes far longer than the allocation.
__attribute__((always_inline)) inline bool fails() {
    if (!active.load(std::memory_order_acquire) || (tests_thread && !in_the_library)) return false;
    const uint64_t caller = place_of(__builtin_return_address(0));
    if (plan.failure.site && caller != plan.failure.caller && plan.left == 0) return false;
    void* callers[kCallers];
    const int depth = backtrace(callers, kCallers);
    const uint64_t hash = hash_of(callers, depth);
    const std::lock_guard lock(plan.mutex);
    if (!plan.progress) return false;
    if (!plan.failure.site) {
        count(*plan.progress, hash, caller);
        return false;
    }
    if (hash == plan.failure.site && ++plan.met == plan.failure.at) plan.left = plan.failure.count;
    if (plan.left == 0) return false;
    note(*plan.progress, callers, depth);
    if (--plan.left == 0) active = false;  // nothing is looked for any more
    return true;
}

}  // namespace

void fail_allocations(AllocationProgress* progress, const AllocationFailure& failure, const void* outermost) {
    void* warm_up[1];
    backtrace(warm_up, 1);  // the first one loads a library
    const std::lock_guard lock(plan.mutex);
    progress->failed = 0;
    progress->depth = 0;
    plan.progress = progress;
    plan.failure = failure;
    plan.outermost = outermost;
    plan.met = 0;
    plan.left = 0;
    active = true;
}

void let_allocations_be() {
    active = false;
    const std::lock_guard lock(plan.mutex);
    plan.progress = nullptr;
}

void this_is_the_tests_thread() { tests_thread = true; }

void note_calls(AllocationProgress* progress) { noted = progress; }

InTheLibrary::InTheLibrary(const char* call) {
    noted->call = call;
    for (const char*& name : noted->called) {
        if (!name) name = call;
        if (std::strcmp(name, call) == 0) break;
    }
    in_the_library = true;
}
InTheLibrary::~InTheLibrary() { in_the_library = false; }

}  // namespace stagehand::test

void* operator new(size_t bytes) {
    void* const memory = stagehand::test::fails() ? nullptr : std::malloc(bytes ? bytes : 1);
    if (!memory) throw std::bad_alloc();
    return memory;
}
void* operator new(size_t bytes, const std::nothrow_t&) noexcept {
    return stagehand::test::fails() ? nullptr : std::malloc(bytes ? bytes : 1);
}
void* operator new(size_t bytes, std::align_val_t alignment) {
    const size_t unit = static_cast<size_t>(alignment);
    void* const memory =
        stagehand::test::fails() ? nullptr : std::aligned_alloc(unit, (bytes + unit - 1) / unit * unit);
    if (!memory) throw std::bad_alloc();
    return memory;
}
void operator delete(void* memory, const std::nothrow_t&) noexcept { std::free(memory); }
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, size_t) noexcept { std::free(memory); }
void operator delete(void* memory, std::align_val_t) noexcept { std::free(memory); }
void operator delete(void* memory, size_t, std::align_val_t) noexcept { std::free(memory); }
