#include "host/device_memory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cinttypes>
#include <cstring>
#include <vector>

#include "base/no_signals.h"
#include "support/last_error.h"

namespace stagehand::host {
namespace {

using support::fail;

// Offsets are numbers, not memory: 2^46 of them leave room for any fragmentation.
constexpr uint64_t kOffsets = uint64_t(1) << 46;

void* as_pointer(uint64_t address) { return reinterpret_cast<void*>(address); }

sh_status out_of_mappings(const char* what) {
    const int error = errno;
    return fail(error == ENOMEM ? SH_ERROR_OUT_OF_HOST_MEMORY : SH_ERROR_BACKEND, "%s: %s%s", what,
                std::strerror(error),
                error == ENOMEM ? " (vm.max_map_count limits the number of mappings of a process)" : "");
}

bool reserve_at(uint64_t address, uint64_t bytes) {
    return mmap(as_pointer(address), bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1,
                0) != MAP_FAILED;
}

// Fails unless every page of the range is mapped in this process.
sh_status check_in_process(uint64_t address, uint64_t bytes) {
    static const uint64_t page = static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
    constexpr uint64_t kPagesAtOnce = 4096;
    unsigned char in_core[kPagesAtOnce];
    bool all = address + bytes > address;
    const uint64_t end = address + bytes;
    for (uint64_t at = address / page * page; all && at < end; at += kPagesAtOnce * page)
        all = mincore(as_pointer(at), std::min(end - at, kPagesAtOnce * page), in_core) == 0;
    if (all) return SH_OK;
    return fail(SH_ERROR_INVALID_ARGUMENT,
                "device address %#" PRIx64 " + %" PRIu64 " bytes: a part of the range is not mapped", address, bytes);
}

}  // namespace

DeviceMemory::DeviceMemory(const Settings& settings)
    : capacity_(settings.capacity_bytes),
      granularity_(settings.granularity_bytes),
      poison_(settings.poison),
      table_(settings.granularity_bytes),
      offsets_(kOffsets) {}

DeviceMemory::~DeviceMemory() {
    for (const auto& [address, bytes] : table_.ranges()) munmap(as_pointer(address), bytes);
    if (spare_mapping_) munmap(spare_mapping_, granularity_);
}

sh_status DeviceMemory::open() {
    file_ = platform::Descriptor(memfd_create("stagehand-device", MFD_CLOEXEC));
    if (!file_.is_open()) return fail(SH_ERROR_BACKEND, "memfd_create: %s", std::strerror(errno));
    void* const spare = mmap(nullptr, granularity_, PROT_NONE, MAP_SHARED, file_.own_number(), 0);
    if (spare == MAP_FAILED) return out_of_mappings("cannot map address space for a device");
    spare_mapping_ = spare;
    return SH_OK;
}

// Puts addresses back into the state of a reservation. The system refuses this call too if the process has its maximum
// of mappings, although the call would reduce their number. The spare mapping is unmapped then to make room for the
// call.
bool DeviceMemory::put_reservation_back(uint64_t address, uint64_t bytes) {
    if (reserve_at(address, bytes)) return true;
    if (errno != ENOMEM) return false;
    std::lock_guard lock(spare_mutex_);
    if (!spare_mapping_) return false;
    munmap(spare_mapping_, granularity_);
    const bool done = reserve_at(address, bytes);
    const int error = errno;
    void* const spare = mmap(nullptr, granularity_, PROT_NONE, MAP_SHARED, file_.own_number(), 0);
    spare_mapping_ = spare == MAP_FAILED ? nullptr : spare;
    errno = error;
    return done;
}

sh_status DeviceMemory::take_offsets(uint64_t bytes, uint64_t count, uint64_t* out_offset) {
    std::unique_lock lock(mutex_);
    if (bytes > capacity_ - current_bytes_) {
        return fail(SH_ERROR_OUT_OF_DEVICE_MEMORY,
                    "%" PRIu64 " bytes are needed, but only %" PRIu64 " are free of %" PRIu64, bytes,
                    capacity_ - current_bytes_, capacity_);
    }
    uint64_t offset = 0;
    offsets_.prepare(pages_ + count);  // room to give all pages back one by one: giving memory back must not allocate
    if (!offsets_.take(bytes, &offset)) {
        return fail(SH_ERROR_OUT_OF_DEVICE_MEMORY, "the device's file has no free run of %" PRIu64 " bytes", bytes);
    }
    if (offset + bytes > file_length_) {
        const NoSignals quiet;
        if (ftruncate(file_.own_number(), static_cast<off_t>(offset + bytes)) != 0) {
            const char* const reason =
                errno == EFBIG ? "larger than the limit on the size of files (RLIMIT_FSIZE)" : std::strerror(errno);
            offsets_.give(offset, bytes);
            return fail(SH_ERROR_BACKEND, "the device's file cannot grow to %" PRIu64 " bytes: %s", offset + bytes,
                        reason);
        }
        file_length_ = offset + bytes;
    }
    pages_ += count;
    current_bytes_ += bytes;
    peak_bytes_ = std::max(peak_bytes_, current_bytes_);
    *out_offset = offset;
    return SH_OK;
}

void DeviceMemory::give_offsets(uint64_t offset, uint64_t bytes, uint64_t count) {
    std::unique_lock lock(mutex_);
    offsets_.give(offset, bytes);
    pages_ -= count;
    current_bytes_ -= bytes;
}

// A page has its memory from the moment of its creation, as on a real device, and not only after the first access.
sh_status DeviceMemory::fill_with_memory(uint64_t offset, uint64_t bytes) const {
    int result = 0;
    do {
        result = fallocate(file_.own_number(), 0, static_cast<off_t>(offset), static_cast<off_t>(bytes));
    } while (result != 0 && errno == EINTR);
    if (result != 0) {
        const int error = errno;
        fallocate(file_.own_number(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, static_cast<off_t>(offset),
                  static_cast<off_t>(bytes));
        return fail(SH_ERROR_OUT_OF_DEVICE_MEMORY, "the system cannot provide %" PRIu64 " bytes for the device: %s",
                    bytes, std::strerror(error));
    }
    return poison_ ? poison(offset, bytes) : SH_OK;
}

sh_status DeviceMemory::poison(uint64_t offset, uint64_t bytes) const {
    std::vector<uint8_t> pattern(std::min<uint64_t>(bytes, 1 << 20), kPoison);
    const NoSignals quiet;
    for (uint64_t done = 0; done < bytes;) {
        const ssize_t written =
            pwrite(file_.own_number(), pattern.data(), std::min<uint64_t>(pattern.size(), bytes - done),
                   static_cast<off_t>(offset + done));
        if (written < 0 && errno == EINTR) continue;
        if (written <= 0) return fail(SH_ERROR_BACKEND, "new pages cannot be poisoned: %s", std::strerror(errno));
        done += static_cast<uint64_t>(written);
    }
    return SH_OK;
}

sh_status DeviceMemory::create(uint64_t page_bytes, uint64_t count, sh_backend_page* out_pages) {
    uint64_t bytes = 0, offset = 0;
    if (sh_status status = table_.check_size(page_bytes, count, &bytes); status < 0) return status;
    if (count == 0) return SH_OK;
    if (sh_status status = take_offsets(bytes, count, &offset); status < 0) return status;
    if (sh_status status = support::guarded([&] { return fill_with_memory(offset, bytes); }); status < 0) {
        give_offsets(offset, bytes, count);
        return status;
    }
    // Page numbers follow the offsets, so that pages with neighbouring numbers are neighbours in memory.
    for (uint64_t i = 0; i < count; ++i) out_pages[i] = (offset + i * page_bytes) / granularity_ + 1;
    std::unique_lock lock(mutex_);
    try {
        return table_.add_pages(page_bytes, count, out_pages);
    } catch (...) {
        fallocate(file_.own_number(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, static_cast<off_t>(offset),
                  static_cast<off_t>(bytes));
        offsets_.give(offset, bytes);
        pages_ -= count;
        current_bytes_ -= bytes;
        throw;
    }
}

sh_status DeviceMemory::punch_runs(uint64_t page_bytes, uint64_t count, const sh_backend_page* pages) {
    for (uint64_t begin = 0, end = 0; begin < count; begin = end) {
        const uint64_t offset = offset_of(pages[begin]);
        for (end = begin + 1; end < count && offset_of(pages[end]) == offset + (end - begin) * page_bytes;) ++end;
        const uint64_t bytes = (end - begin) * page_bytes;
        if (fallocate(file_.own_number(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, static_cast<off_t>(offset),
                      static_cast<off_t>(bytes)) != 0) {
            return fail(SH_ERROR_BACKEND, "memory cannot be returned to the system: %s", std::strerror(errno));
        }
    }
    return SH_OK;
}

sh_status DeviceMemory::destroy(uint64_t page_bytes, uint64_t count, const sh_backend_page* pages) {
    {
        std::unique_lock lock(mutex_);
        if (sh_status status = table_.remove_pages(page_bytes, count, pages); status < 0) return status;
    }
    // The offsets stay taken until the memory is returned. Otherwise a page that is created meanwhile could lose its
    // memory.
    const sh_status status = punch_runs(page_bytes, count, pages);
    std::unique_lock lock(mutex_);
    if (status < 0) {
        table_.add_pages(page_bytes, count, pages);
        return status;
    }
    for (uint64_t i = 0; i < count; ++i) offsets_.give(offset_of(pages[i]), page_bytes);
    pages_ -= count;
    current_bytes_ -= page_bytes * count;
    return SH_OK;
}

sh_status DeviceMemory::reserve(uint64_t bytes, uint64_t alignment, uint64_t* out_address) {
    alignment = std::max(alignment, granularity_);
    uint64_t padded = 0;
    if (bytes == 0 || bytes % granularity_ != 0 || (alignment & (alignment - 1)) != 0 ||
        __builtin_add_overflow(bytes, alignment, &padded)) {
        return fail(SH_ERROR_INVALID_ARGUMENT,
                    "cannot reserve %" PRIu64 " bytes aligned to %" PRIu64 ": the size must be a multiple of %" PRIu64
                    ", the alignment a power of two",
                    bytes, alignment, granularity_);
    }
    void* const mapping = mmap(nullptr, padded, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (mapping == MAP_FAILED) {
        return fail(SH_ERROR_OUT_OF_HOST_MEMORY, "address space of %" PRIu64 " bytes cannot be reserved: %s", bytes,
                    std::strerror(errno));
    }
    const uint64_t begin = reinterpret_cast<uint64_t>(mapping);
    const uint64_t address = (begin + alignment - 1) & ~(alignment - 1);
    if (address > begin) munmap(mapping, address - begin);
    if (begin + padded > address + bytes) munmap(as_pointer(address + bytes), begin + padded - address - bytes);
    std::unique_lock lock(mutex_);
    try {
        table_.add_range(address, bytes);
    } catch (...) {
        munmap(as_pointer(address), bytes);
        throw;
    }
    *out_address = address;
    return SH_OK;
}

sh_status DeviceMemory::free(uint64_t address, uint64_t bytes) {
    std::unique_lock lock(mutex_);
    if (sh_status status = table_.remove_range(address, bytes); status < 0) return status;
    munmap(as_pointer(address), bytes);
    return SH_OK;
}

sh_status DeviceMemory::map(uint64_t address, uint64_t page_bytes, uint64_t count, const sh_backend_page* pages) {
    {
        std::unique_lock lock(mutex_);
        if (sh_status status = table_.map(address, page_bytes, count, pages); status < 0) return status;
    }
    for (uint64_t begin = 0, end = 0; begin < count; begin = end) {
        const uint64_t offset = offset_of(pages[begin]);
        for (end = begin + 1; end < count && offset_of(pages[end]) == offset + (end - begin) * page_bytes;) ++end;
        // The mapping is populated now. The first copy through an alias that is not populated runs at a fifth of the
        // speed.
        void* const mapped =
            mmap(as_pointer(address + begin * page_bytes), (end - begin) * page_bytes, PROT_READ | PROT_WRITE,
                 MAP_SHARED | MAP_FIXED | MAP_POPULATE, file_.own_number(), static_cast<off_t>(offset));
        if (mapped != MAP_FAILED) continue;
        const sh_status status = out_of_mappings("pages cannot be mapped");
        if (begin > 0) put_reservation_back(address, begin * page_bytes);
        std::unique_lock lock(mutex_);
        table_.unmap(address, page_bytes, count);
        return status;
    }
    return SH_OK;
}

sh_status DeviceMemory::unmap(uint64_t address, uint64_t page_bytes, uint64_t count) {
    {
        std::unique_lock lock(mutex_);
        if (sh_status status = table_.check_unmap(address, page_bytes, count); status < 0 || count == 0) return status;
    }
    if (!put_reservation_back(address, page_bytes * count)) return out_of_mappings("pages cannot be unmapped");
    std::unique_lock lock(mutex_);
    return table_.unmap(address, page_bytes, count);
}

sh_status DeviceMemory::check_mapped(uint64_t address, uint64_t bytes) const {
    std::shared_lock lock(mutex_);
    return table_.check_mapped(address, bytes);
}

sh_status DeviceMemory::check_usable(uint64_t address, uint64_t bytes) const {
    if (bytes == 0) return SH_OK;
    {
        std::shared_lock lock(mutex_);
        const uint64_t end = address + bytes < address ? UINT64_MAX : address + bytes;
        auto range = table_.ranges().lower_bound(end);  // the first one behind the bytes
        const bool own = range != table_.ranges().begin() && (--range, range->first + range->second > address);
        if (own) return table_.check_mapped(address, bytes);
    }
    return check_in_process(address, bytes);
}

void DeviceMemory::info(uint64_t* out_free, uint64_t* out_total) const {
    std::shared_lock lock(mutex_);
    *out_free = capacity_ - current_bytes_;
    *out_total = capacity_;
}

void DeviceMemory::statistics(MemoryStatistics* out) const {
    struct stat status = {};
    fstat(file_.own_number(), &status);
    std::shared_lock lock(mutex_);
    out->current_bytes = current_bytes_;
    out->peak_bytes = peak_bytes_;
    out->mapped_bytes = table_.mapped_bytes();
    out->file_bytes = static_cast<uint64_t>(status.st_blocks) * 512;
    out->pages = table_.pages();
}

}  // namespace stagehand::host
