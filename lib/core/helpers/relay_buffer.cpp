#include "core/helpers/relay_buffer.h"

#include <algorithm>
#include <utility>

#include "base/no_throw.h"

namespace stagehand::core {
namespace {

// Enough for copies of 8 MiB to be under way on both links. At most a part of the helper's budget.
constexpr uint64_t kMostRelayBytes = 48 << 20, kLeastRelayBytes = 6 << 20;
constexpr uint64_t kRelayPart = 16;

}  // namespace

RelayBuffer::RelayBuffer(std::shared_ptr<Device> helper, std::string name)
    : helper_(std::move(helper)), name_(std::move(name)), memory_(helper_->backend(), helper_->pool()) {
    helper_->arbiter().join(*this);
}

RelayBuffer::~RelayBuffer() {
    (void)free().ok();
    helper_->arbiter().leave(*this, lost_pages_ + memory_.pages());
}

void RelayBuffer::abandon() noexcept {
    lost_pages_ += memory_.pages();
    memory_.abandon();
}

Status RelayBuffer::take(BackendDevice& device) {
    const uint64_t page = helper_->page_bytes(), budget = helper_->arbiter().total_pages() * page;
    const uint64_t bytes = std::min(kMostRelayBytes, budget / kRelayPart);
    if (bytes < kLeastRelayBytes) return Status(SH_ERROR_BUDGET, helper_->name() + " has too small a budget to help");
    SH_TRY(free());
    Needs needs;
    needs.least_pages = needs.wanted_pages = (bytes + page - 1) / page;
    uint64_t share = 0;
    Status status = no_throw([&] {
        SH_TRY(helper_->arbiter().request(*this, needs, false, &share));
        SH_TRY(memory_.take(needs.least_pages));
        return reach(device);
    });
    if (status.ok())
        helper_->arbiter().settle(*this, {needs.least_pages, 0, {}});
    else
        (void)free().ok();
    return status;
}

// Page by page, because drivers know each page as memory of its own.
Status RelayBuffer::reach(BackendDevice& device) {
    constexpr uint32_t kStraight = 2;
    const uint64_t step = helper_->backend().maps_pages() ? helper_->page_bytes() : memory_.bytes();
    for (uint64_t done = 0; done < memory_.bytes(); done += step) {
        uint32_t reachable = 0;
        if (device.reaches_memory()) SH_TRY(device.memory_is_reachable(memory_.address() + done, step, &reachable));
        if (reachable < kStraight)
            return Status(SH_ERROR_UNSUPPORTED,
                          "the device cannot copy straight from the memory of " + helper_->name());
    }
    return Status();
}

Status RelayBuffer::free() {
    const bool held = memory_.pages() != 0;
    SH_TRY(memory_.free());
    helper_->arbiter().withdraw(*this);
    if (held) (void)helper_->pool().trim(0).ok();  // the memory is for anybody again
    return Status();
}

}  // namespace stagehand::core
