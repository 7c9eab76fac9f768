// PagePool: the physical pages of a device. It counts the pages that the library holds, which never exceed the budget.
#pragma once

#include <cstdint>
#include <functional>
#include <mutex>
#include <vector>

#include "backend/backend_device.h"
#include "base/status.h"

namespace stagehand::core {

// Thread-safe, because the runtimes of a device share the pool.
class PagePool {
public:
    PagePool(BackendDevice& device, uint64_t page_bytes);
    ~PagePool();

    uint64_t page_bytes() const { return page_bytes_; }

    // Appends `count` pages to `out`, or none. Recycled pages come first, and neighbours are together.
    Status take(uint64_t count, std::vector<sh_backend_page>* out);
    // Takes pages back for recycling. The pages must not be mapped any more.
    void give(const sh_backend_page* pages, uint64_t count);
    // For devices that do not map pages: allocates contiguous memory with its address, under the same ceiling. The
    // memory goes back to the driver at once when it is released.
    Status allocate(uint64_t pages, uint64_t* out_address);
    Status release(uint64_t address, uint64_t pages);
    // Gives recycled pages back to the driver until at most `keep` pages are idle.
    Status trim(uint64_t keep);

    // Lives while pages are taken, or given back in order to take others. Only one change is under way at a time. The
    // ceiling does not come down meanwhile, nor below the pages that were in use when the change began.
    class Change {
    public:
        explicit Change(PagePool& pool);
        ~Change();
        Change(const Change&) = delete;
        Change& operator=(const Change&) = delete;
        // True if `pages` more pages may be in use.
        bool has_room(uint64_t pages) const;

    private:
        PagePool& pool_;
        const std::lock_guard<std::mutex> changing_;
    };

    // Device memory beside the pool counts against the same ceiling: somebody held `before` bytes of it, and holds
    // `now` bytes. Recycled pages beyond the ceiling go to the driver.
    void change_outside(uint64_t before, uint64_t now);

    uint64_t used_bytes() const;  // of all pages that exist, in use or idle, and of memory beside the pool
    uint64_t peak_bytes() const;
    // Sets the number of pages that may exist. `pages` is called when no change is under way, so that the later of two
    // callers sees the effect of the earlier. If more pages exist, pages that are given back go to the driver until the
    // number fits.
    void set_limit(const std::function<uint64_t()>& pages);

private:
    Status destroy_idle(uint64_t count);
    void shed();
    Status check_room(uint64_t pages) const;
    uint64_t within_limit() const;
    uint64_t may_exist() const;
    void note_peak();

    BackendDevice& device_;
    const uint64_t page_bytes_;
    std::mutex changing_;  // taken before mutex_
    mutable std::mutex mutex_;
    // Descending when sorted, so that the lowest pages, which are neighbours, go first.
    std::vector<sh_backend_page> idle_;
    bool sorted_ = true;
    uint64_t existing_ = 0;
    uint64_t outside_bytes_ = 0;
    uint64_t peak_bytes_ = 0;
    uint64_t limit_ = 0;  // pages that may exist, together with the memory beside the pool
    // Pages that were in use when the present change began. As many may exist until it ends.
    uint64_t in_use_before_ = 0;
};

}  // namespace stagehand::core
