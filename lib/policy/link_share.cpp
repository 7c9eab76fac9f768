#include "policy/link_share.h"

namespace stagehand::policy {
namespace {

constexpr uint64_t kWithoutWeightsNs = 50'000'000;  // after which the link is not shared any more

}  // namespace

void LinkShare::passed(uint64_t ns) {
    if (!ns) return;
    carried_ = std::min(carried_ + room_, static_cast<double>(queued_));
    position_ = next_;
    next_ += ns;
    room_ = rate_ * static_cast<double>(ns);
}

uint64_t LinkShare::weights_queued(uint64_t bytes, uint64_t ahead_ns) {
    queued_ += bytes;
    if (next_ && bytes) {
        last_due_ = std::max(last_due_, position_ + ahead_ns);
        shared_until_ = std::max(shared_until_, last_due_ + kWithoutWeightsNs);
    }
    return queued_;
}

uint64_t LinkShare::saved_queued(uint64_t bytes) { return queued_ += bytes; }

}  // namespace stagehand::policy
