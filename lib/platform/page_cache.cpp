#include "platform/page_cache.h"

#include <algorithm>
#include <cerrno>

#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include "platform/anonymous_memory.h"

#ifndef SYS_cachestat
#define SYS_cachestat 451  // the same number on every architecture
#endif
#ifndef RWF_NOWAIT
#define RWF_NOWAIT 0x8
#endif

namespace stagehand::platform {
namespace {

// The kernel defines these structs since 6.5. The headers of Debian 12 lack them.
struct CacheStatRange {
    uint64_t offset, length;
};
struct CacheStat {
    uint64_t cached, dirty, writeback, evicted, recently_evicted;
};

constexpr uint64_t kSampleStep = 512 << 10;

Cached byte_is_cached(int file, uint64_t offset) {
    char byte = 0;
    const ssize_t got = read_cached(file, &byte, 1, offset);
    if (got == -EOPNOTSUPP || got == -ENOSYS) return Cached::kUnknown;
    return got == 1 ? Cached::kYes : Cached::kNo;
}

Cached sample(int file, uint64_t offset, uint64_t bytes) {
    // The samples begin at the end. A probe that misses may start a small read, and that read must not change the
    // answer for the bytes behind it.
    Cached result = byte_is_cached(file, offset + bytes - 1);
    for (uint64_t at = 0; result == Cached::kYes && at < bytes; at += kSampleStep)
        result = byte_is_cached(file, offset + at);
    return result;
}

}  // namespace

Cached in_page_cache(int file, uint64_t offset, uint64_t bytes, CacheProbe probe) {
    if (bytes == 0 || offset > static_cast<uint64_t>(INT64_MAX) - bytes) return Cached::kNo;
    if (probe == CacheProbe::kBest) {
        CacheStatRange range = {offset, bytes};
        CacheStat stat = {};
        if (syscall(SYS_cachestat, file, &range, &stat, 0) == 0) {
            const uint64_t page = page_size();
            const uint64_t pages = (offset + bytes - 1) / page - offset / page + 1;
            if (stat.cached >= pages) return Cached::kYes;
            if (stat.cached > 0) return Cached::kNo;
            // A count of 0 may mean that another file holds the pages: the file below an overlay.
        }
    }
    return sample(file, offset, bytes);
}

ssize_t read_cached(int file, void* to, size_t bytes, uint64_t offset) {
    size_t done = 0;
    while (done < bytes) {
        struct iovec vector = {static_cast<char*>(to) + done, bytes - done};
        const ssize_t got = preadv2(file, &vector, 1, static_cast<off_t>(offset + done), RWF_NOWAIT);
        if (got < 0 && errno == EINTR) continue;
        if (got < 0 && errno == EAGAIN) break;
        if (got < 0) return done ? static_cast<ssize_t>(done) : -errno;
        if (got == 0) break;
        done += static_cast<size_t>(got);
    }
    return static_cast<ssize_t>(done);
}

}  // namespace stagehand::platform
