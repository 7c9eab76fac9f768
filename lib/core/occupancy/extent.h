// Extent: a range of addresses for memory of sh_alloc(), the device memory behind the addresses, and the host memory
// that keeps the contents while the device memory is gone, and after that.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "backend/backend_device.h"
#include "base/status.h"
#include "codec/tiles_apart.h"
#include "core/occupancy/page.h"
#include "transfer/host/gradual_memory.h"
#include "transfer/host/staging_file.h"

namespace stagehand::core {

struct Tag;

// What becomes of contents that leave.
enum class Leaving : uint8_t { stage, drop, zero };
struct WayOut {
    Leaving leaving = Leaving::stage;
    bool to_file = false;  // a file keeps what is staged, not host memory
};

// What becomes of contents, as an allocation says.
struct Keeping {
    WayOut way_out;
    bool constant = false;  // they stay as they were when they came back
    uint32_t format = 0;    // SH_FORMAT_*
};

// Where the contents of an extent are to be kept.
struct Store {
    transfer::StagingFiles* files = nullptr;  // of which one keeps the contents, not host memory
    std::string folder;                       // of the file
    bool pinned = true;                       // host memory, if it is new
    uint32_t format = 0;                      // SH_FORMAT_* of contents that are packed. 0: they are not
    bool only_prepares = false;               // contents that are kept stay, whatever the format
};

// Memory that one handle of the driver stands for.
struct Handle {
    uint64_t offset = 0;  // in the extent
    uint64_t bytes = 0;
    size_t first_page = 0, page_count = 0;
    sh_backend_page page = 0;  // 0: there is no memory
    bool mapped = false;
    bool filled = false;  // the contents are in this memory, as far as they are defined
};

// What the extents of a device have and have taken together.
struct ExtentTotals {
    uint64_t held_bytes = 0;  // of device memory
    // Time in calls of the driver, in nanoseconds.
    uint64_t create_ns = 0, map_ns = 0, unmap_ns = 0, destroy_ns = 0;
};

// One caller at a time.
class Extent {
public:
    // `bytes` is a multiple of the granularity.
    Extent(BackendDevice& device, ExtentTotals* totals, uint64_t bytes, Keeping keeping)
        : leaving(keeping.way_out.leaving), device_(device), totals_(*totals), bytes_(bytes), keeping_(keeping) {}
    Extent(const Extent&) = delete;
    Extent& operator=(const Extent&) = delete;

    // Reserves addresses and takes memory for all of them. After a failure close() has to succeed.
    Status open();
    // Gives everything back but host memory. After a failure the call may be repeated.
    Status close();

    uint64_t address() const { return address_; }
    uint64_t bytes() const { return bytes_; }
    const Keeping& keeping() const { return keeping_; }
    std::vector<Handle>& handles() { return handles_; }
    const std::vector<Handle>& handles() const { return handles_; }
    std::span<Page> pages() { return pages_; }
    std::span<const Page> pages() const { return pages_; }
    std::span<Page> pages_of(const Handle& handle) { return pages().subspan(handle.first_page, handle.page_count); }
    // Takes memory for a handle, or maps what it still has.
    Status attach(Handle& handle);
    // Gives the memory of a handle back to the driver. After a failure the handle is as before, or only not mapped.
    Status detach(Handle& handle);
    uint64_t device_bytes() const;
    uint64_t missing_bytes() const { return bytes_ - device_bytes(); }
    // Contents that only host memory has.
    uint64_t staged_bytes() const;
    // The contents of a handle's pages that have to come back.
    uint64_t used_bytes(const Handle& handle) const;

    // Which pages have contents that have to come back: those that do not lie in one of these ranges as a whole. The
    // ranges are in order, and do not touch. Before the first call all pages have.
    void note_unused(std::span<const AddressRange> ranges);
    // Gives each page whose contents have to come back a place in host memory, and reserves memory if there is too
    // little: `out_taken` tells. The contents of earlier cycles stay otherwise. Devices without contents get none.
    Status take_host_memory(const Store& store, bool* out_taken);
    // The host memory that take_host_memory() needs in all.
    uint64_t needed_bytes(uint32_t format) const;
    bool drop_host_memory();  // false: the memory stays, see GradualMemory::reset()
    transfer::GradualMemory& host() { return host_; }
    const transfer::GradualMemory& host() const { return host_; }
    // Has the contents in the place of host memory, if not null.
    transfer::StagingRange* file() const { return file_.get(); }
    uint64_t file_bytes() const { return file_ ? file_->bytes() : 0; }
    // Where the contents of a page are kept. Devices without contents get an address that nothing reads.
    void* host_at(const Page& page) const;
    // Whether the page can be packed in this cycle, in host memory that is pinned as a whole.
    bool may_be_packed(const Page& page) const;
    uint32_t packs_as() const { return packs_as_; }  // SH_FORMAT_*
    // Of the host memory that places and headers take.
    uint64_t host_end() const { return headers_at_ + headers_bytes_; }
    // Where host memory has a packed page and its neighbours.
    codec::TilesApart tiles_at(const Page& first, uint64_t bytes) const;
    // No copy may cross a multiple of this in host memory.
    static constexpr uint64_t kPieceBytes = transfer::GradualMemory::kPieceBytes;

    // The copies of a handle's pages have ended: its contents are in host memory.
    void note_left(const Handle& handle) noexcept;
    // The engine may have written what nobody promised to leave as it was.
    void note_new_contents() noexcept;

    Tag* tag = nullptr;
    Leaving leaving;      // in this cycle
    bool shared = false;  // a chunk
    uint64_t allocations = 0;

private:
    void divide();
    void divide_into_pages();
    bool moves(const Page& page) const { return page.bytes == page_bytes_; }
    void give_places();
    uint64_t bytes_of_places() const;
    void pack_as(uint32_t format);
    template <class Call>
    Status timed(uint64_t* total, Call&& call);
    bool maps_pages() const { return device_.maps_pages(); }

    BackendDevice& device_;
    ExtentTotals& totals_;
    const uint64_t bytes_;
    const Keeping keeping_;
    uint64_t address_ = 0;
    std::vector<Handle> handles_;  // empty on devices that do not map pages
    uint64_t page_bytes_ = 0;      // of all pages but the last ones, which are smaller, and whose places are the last
    std::vector<Page> pages_;
    transfer::GradualMemory host_;
    std::unique_ptr<transfer::StagingRange> file_;
    uint64_t places_ = 0;                          // in host memory, for pages of page_bytes_. 0: no page has a place
    uint64_t headers_at_ = 0, headers_bytes_ = 0;  // of packed pages, behind all places
    uint32_t packs_as_ = 0;                        // SH_FORMAT_* in this cycle. 0: nothing is packed
};

using Extents = std::map<uint64_t, std::unique_ptr<Extent>>;  // by their addresses

}  // namespace stagehand::core
