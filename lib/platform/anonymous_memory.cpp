#include "platform/anonymous_memory.h"

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include <sys/mman.h>
#include <unistd.h>

#include "base/size_text.h"
#include "platform/host_memory.h"
#include "platform/thread.h"

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif

namespace stagehand::platform {
namespace {

constexpr uint64_t kHugePage = uint64_t(2) << 20;
constexpr uint64_t kTouchUnit = uint64_t(32) << 20;  // one thread touches this much at a time
constexpr uint64_t kTouchThreads = 8;  // more gain nothing: clearing pages then fills the memory bandwidth

int touch_range(char* begin, uint64_t bytes) {
    int result = 0;
    do {
        result = madvise(begin, bytes, MADV_POPULATE_WRITE);
    } while (result != 0 && errno == EINTR);
    if (result == 0) return 0;
    if (errno != EINVAL && errno != ENOSYS) return errno;
    const uint64_t page = page_size();  // for kernels before 5.14
    for (uint64_t at = 0; at < bytes; at += page) {
        volatile char* const byte = begin + at;
        *byte = *byte;
    }
    return 0;
}

Status touched(int error, uint64_t bytes) {
    if (error == 0) return Status();
    return Status(SH_ERROR_OUT_OF_HOST_MEMORY,
                  size_text(bytes) + " of host memory cannot be allocated: " + std::strerror(error));
}

}  // namespace

uint64_t page_size() {
    static const uint64_t size = static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
    return size;
}

bool round_up(uint64_t bytes, uint64_t unit, uint64_t* out) {
    if (bytes > UINT64_MAX - (unit - 1)) return false;
    *out = (bytes + unit - 1) & ~(unit - 1);
    return true;
}

Status map_anonymous(uint64_t bytes, void** out_memory, uint64_t* out_mapped_bytes, bool huge_pages) {
    uint64_t mapped = 0;
    if (bytes == 0) return Status(SH_ERROR_INVALID_ARGUMENT, "cannot map 0 bytes of host memory");
    if (!round_up(bytes, page_size(), &mapped) || mapped > uint64_t(1) << 56)
        return Status(SH_ERROR_OUT_OF_HOST_MEMORY,
                      exact_size_text(bytes) + " of host memory are more than can be addressed");
    const HostMemory host = read_host_memory();
    if (mapped > host.available_bytes) {
        return Status(SH_ERROR_OUT_OF_HOST_MEMORY,
                      size_text(mapped) + " of host memory are needed, but only " + size_text(host.available_bytes) +
                          " are left " +
                          (host.limited_by.empty() ? "on this machine" : "in the control group " + host.limited_by));
    }
    // The spare bytes let the memory begin at the boundary of a huge page. The rest of them is unmapped again.
    const uint64_t spare = mapped >= kHugePage ? kHugePage - page_size() : 0;
    void* const whole = mmap(nullptr, mapped + spare, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (whole == MAP_FAILED) {
        return Status(SH_ERROR_OUT_OF_HOST_MEMORY,
                      size_text(mapped) + " of host memory cannot be mapped: " + std::strerror(errno));
    }
    char* const begin = static_cast<char*>(whole);
    const uint64_t address = reinterpret_cast<uint64_t>(begin);
    const uint64_t head = spare ? (kHugePage - address % kHugePage) % kHugePage : 0;
    if (head) munmap(begin, head);
    if (spare > head) munmap(begin + head + mapped, spare - head);
    // Only advice: pages are as the kernel likes if it refuses.
    if (spare) madvise(begin + head, mapped, huge_pages ? MADV_HUGEPAGE : MADV_NOHUGEPAGE);
    *out_memory = begin + head;
    *out_mapped_bytes = mapped;
    return Status();
}

void unmap_anonymous(void* memory, uint64_t mapped_bytes) { munmap(memory, mapped_bytes); }

Status touch(void* memory, uint64_t mapped_bytes) {
    char* const begin = static_cast<char*>(memory);
    const uint64_t units = (mapped_bytes + kTouchUnit - 1) / kTouchUnit;
    std::atomic<uint64_t> next = 0;
    std::atomic<int> failure = 0;
    const auto work = [&] {
        for (uint64_t unit; (unit = next.fetch_add(1)) < units && failure.load() == 0;) {
            const uint64_t offset = unit * kTouchUnit;
            if (const int error = touch_range(begin + offset, std::min(kTouchUnit, mapped_bytes - offset)))
                failure.store(error);
        }
    };
    std::vector<std::thread> helpers;
    try {
        const uint64_t threads = std::min<uint64_t>({units, usable_cores(), kTouchThreads});
        helpers.reserve(threads);
        for (uint64_t i = 1; i < threads; i++) {
            std::thread thread;
            if (!start_thread("sh-touch", work, &thread).ok()) break;  // fewer threads do the work too
            helpers.push_back(std::move(thread));
        }
    } catch (...) {  // fewer threads do the work too
    }
    work();
    for (std::thread& helper : helpers) helper.join();
    return touched(failure.load(), mapped_bytes);
}

Status touch_here(void* memory, uint64_t mapped_bytes) {
    return touched(touch_range(static_cast<char*>(memory), mapped_bytes), mapped_bytes);
}

}  // namespace stagehand::platform
