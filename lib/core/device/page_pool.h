// PagePool: the physical pages of a device. Counts what the library holds, which is never more than the budget.
#pragma once

#include <cstdint>
#include <functional>
#include <mutex>
#include <vector>

#include "backend/backend_device.h"
#include "base/status.h"

namespace stagehand::core {

// Thread-safe: the runtimes of a device share it.
class PagePool {
public:
    PagePool(BackendDevice& device, uint64_t page_bytes);
    ~PagePool();

    uint64_t page_bytes() const { return page_bytes_; }

    // Appends `count` pages to `out`, recycled ones first, neighbours together; all or none.
    Status take(uint64_t count, std::vector<sh_backend_page>* out);
    // Takes pages back for recycling. They are not mapped any more.
    void give(const sh_backend_page* pages, uint64_t count);
    // On devices that do not map pages: memory in one piece with its address, under the same ceiling. Goes back to the driver at once.
    Status allocate(uint64_t pages, uint64_t* out_address);
    Status release(uint64_t address, uint64_t pages);
    // Gives recycled pages back to the driver until no more than `keep` are held idle.
    Status trim(uint64_t keep);

    // While pages are taken, or given back to take others: one at a time, and the ceiling does not come down meanwhile, nor below what
    // was in use when it began.
    class Change {
    public:
        explicit Change(PagePool& pool);
        ~Change();
        Change(const Change&) = delete;
        Change& operator=(const Change&) = delete;
        // Whether so many more may be in use.
        bool has_room(uint64_t pages) const;

    private:
        PagePool& pool_;
        const std::lock_guard<std::mutex> changing_;
    };

    uint64_t idle_pages() const;
    uint64_t used_bytes() const;   // of pages that exist, in use or idle
    uint64_t peak_bytes() const;
    // Pages that may exist, looked up when no change is under way, so that of two callers at once the later finds what the earlier did. With
    // fewer than exist, what is given back goes to the driver until they fit.
    void set_limit(const std::function<uint64_t()>& pages);

private:
    Status destroy_idle(uint64_t count);
    void shed();
    Status check_room(uint64_t pages) const;

    BackendDevice& device_;
    const uint64_t page_bytes_;
    std::mutex changing_;   // taken before mutex_
    mutable std::mutex mutex_;
    std::vector<sh_backend_page> idle_;   // when sorted: descending, so that the lowest, which are neighbours, go first
    bool sorted_ = true;
    uint64_t existing_ = 0;
    uint64_t peak_ = 0;
    uint64_t limit_ = 0;                  // pages that may exist
    uint64_t in_use_before_ = 0;          // when a change began that is under way: as many may exist until it ends
};

}  // namespace stagehand::core
