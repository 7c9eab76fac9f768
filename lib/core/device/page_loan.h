// PageLoan: pages of a device for the time of a measurement. They are pages that nobody may hold now.
#pragma once

#include <cstdint>

#include "core/device/device.h"

namespace stagehand::core {

// What needs a part of the budget meanwhile waits for the end of the loan: see Device::retry_after_loans().
class PageLoan {
public:
    // Borrows up to `most` pages, or none if fewer than `least` are there.
    PageLoan(Device& device, uint64_t least, uint64_t most) : device_(device) {
        device_.brief_loans().begin();
        pages_ = device_.arbiter().lend(least, most);
    }
    // The pages have gone back to the pool. The driver gets them, because the plan that follows may want less.
    ~PageLoan() {
        if (pages_ && !lost_) (void)device_.pool().trim(0).ok();
        device_.arbiter().take_back(pages_, lost_ ? pages_ : 0);
        device_.brief_loans().end();
    }
    PageLoan(const PageLoan&) = delete;
    PageLoan& operator=(const PageLoan&) = delete;

    uint64_t pages() const { return pages_; }
    // The device may use the pages for ever.
    void abandon() { lost_ = true; }

private:
    Device& device_;
    uint64_t pages_ = 0;
    bool lost_ = false;
};

}  // namespace stagehand::core
