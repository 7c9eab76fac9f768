#include "core/device/page_pool.h"

#include <algorithm>
#include <functional>
#include <string>
#include <utility>

#include "base/log.h"
#include "base/once_more.h"
#include "base/size_text.h"

namespace stagehand::core {

PagePool::PagePool(BackendDevice& device, uint64_t page_bytes) : device_(device), page_bytes_(page_bytes) {}

PagePool::~PagePool() {
    if (Status status = once_more([&] { return destroy_idle(idle_.size()); }); !status.ok())
        log_line(SH_LOG_WARNING, "closing the device did not free its memory: %s", status.text());
}

Status PagePool::take(uint64_t count, std::vector<sh_backend_page>* out) {
    std::lock_guard lock(mutex_);
    shed();  // tries again to give back pages beyond the limit
    if (!std::exchange(sorted_, true)) std::sort(idle_.begin(), idle_.end(), std::greater<>());
    const uint64_t recycled = std::min<uint64_t>(count, idle_.size());
    const uint64_t fresh = count - recycled;
    SH_TRY(check_room(fresh));
    if (idle_.capacity() < existing_ + fresh) idle_.reserve(2 * (existing_ + fresh));  // so that give() never allocates
    const size_t begin = out->size();
    out->resize(begin + count);
    if (fresh) {
        if (Status status = device_.pages_create(page_bytes_, fresh, out->data() + begin + recycled); !status.ok()) {
            out->resize(begin);
            return status;
        }
        existing_ += fresh;
        note_peak();
    }
    for (uint64_t i = 0; i < recycled; i++) {
        (*out)[begin + i] = idle_.back();
        idle_.pop_back();
    }
    return Status();
}

Status PagePool::check_room(uint64_t pages) const {
    if (existing_ + pages <= may_exist()) return Status();
    return Status(SH_ERROR_OUT_OF_DEVICE_MEMORY,
                  "the device's budget now allows " + exact_size_text(limit_ * page_bytes_) +
                      ", which leaves no room for " + exact_size_text(pages * page_bytes_) +
                      " more: " + exact_size_text(existing_ * page_bytes_ + outside_bytes_) + " are held");
}

// The part of the limit that is left for pages.
uint64_t PagePool::within_limit() const {
    const uint64_t outside = (outside_bytes_ + page_bytes_ - 1) / page_bytes_;
    return limit_ - std::min(limit_, outside);
}

uint64_t PagePool::may_exist() const { return std::max(within_limit(), in_use_before_); }

void PagePool::note_peak() { peak_bytes_ = std::max(peak_bytes_, existing_ * page_bytes_ + outside_bytes_); }

Status PagePool::allocate(uint64_t pages, uint64_t* out_address) {
    std::lock_guard lock(mutex_);
    SH_TRY(check_room(pages));
    SH_TRY(device_.range_reserve(pages * page_bytes_, page_bytes_, out_address));
    existing_ += pages;
    note_peak();
    return Status();
}

Status PagePool::release(uint64_t address, uint64_t pages) {
    std::lock_guard lock(mutex_);
    SH_TRY(device_.range_free(address, pages * page_bytes_));
    existing_ -= pages;
    return Status();
}

void PagePool::give(const sh_backend_page* pages, uint64_t count) {
    if (!count) return;
    std::lock_guard lock(mutex_);
    idle_.insert(idle_.end(), pages, pages + count);
    sorted_ = false;
    shed();
}

void PagePool::shed() {
    const uint64_t most = may_exist();
    if (existing_ <= most) return;
    if (Status status = destroy_idle(std::min<uint64_t>(existing_ - most, idle_.size())); !status.ok())
        log_line(SH_LOG_WARNING, "device memory beyond the budget was not given back: %s", status.text());
}

Status PagePool::trim(uint64_t keep) {
    std::lock_guard lock(mutex_);
    return idle_.size() > keep ? destroy_idle(idle_.size() - keep) : Status();
}

Status PagePool::destroy_idle(uint64_t count) {
    if (!count) return Status();
    SH_TRY(device_.pages_destroy(page_bytes_, count, idle_.data()));
    idle_.erase(idle_.begin(), idle_.begin() + count);
    existing_ -= count;
    return Status();
}

uint64_t PagePool::used_bytes() const {
    std::lock_guard lock(mutex_);
    return existing_ * page_bytes_ + outside_bytes_;
}

uint64_t PagePool::peak_bytes() const {
    std::lock_guard lock(mutex_);
    return peak_bytes_;
}

void PagePool::change_outside(uint64_t before, uint64_t now) {
    std::lock_guard lock(mutex_);
    outside_bytes_ += now - before;
    shed();
    note_peak();
}

PagePool::Change::Change(PagePool& pool) : pool_(pool), changing_(pool.changing_) {
    std::lock_guard lock(pool_.mutex_);
    pool_.in_use_before_ = pool_.existing_ - pool_.idle_.size();
}

PagePool::Change::~Change() {
    std::lock_guard lock(pool_.mutex_);
    pool_.in_use_before_ = 0;
    pool_.shed();
}

bool PagePool::Change::has_room(uint64_t pages) const {
    std::lock_guard lock(pool_.mutex_);
    return pool_.existing_ - pool_.idle_.size() + pages <= pool_.within_limit();
}

void PagePool::set_limit(const std::function<uint64_t()>& pages) {
    std::lock_guard changing(changing_);
    const uint64_t limit = pages();
    std::lock_guard lock(mutex_);
    limit_ = limit;
    shed();
}

}  // namespace stagehand::core
