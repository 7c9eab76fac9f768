#include "core/movement/helped_loads.h"

#include <algorithm>
#include <utility>

#include "base/once_more.h"

namespace stagehand::core {

HelpedLoads::~HelpedLoads() {
    if (passed_) (void)once_more([&] { return device_.event_destroy(passed_); }).ok();
}

Status HelpedLoads::open(Helpers* helpers) {
    SH_TRY(device_.event_create(false, &passed_));
    helpers_ = helpers;
    return Status();
}

HelpedLoads::Mark HelpedLoads::mark(const Unit& unit) {
    if (!helpers_) return {};
    const size_t index = registry_.index_of(unit);
    if (last_of_.size() <= index) last_of_.resize(index + 1);
    return {helpers_->bytes(), losses_};
}

// Other loads under way may be those that helpers had a part in. That errs on the safe side.
void HelpedLoads::queued(Unit& unit, const Mark& begin, bool whole) {
    if (!helpers_) return;
    note_losses();
    if (helpers_->bytes() == begin.bytes && losses_ == begin.losses) return;
    const size_t index = registry_.index_of(unit);
    if (index >= last_of_.size()) return;  // the load has queued nothing
    last_of_[index] = ++last_;
    if (losses_ == begin.losses) return;
    lose(unit);
    if (whole) told_ = false;
}

void HelpedLoads::look(sh_stream lane) {
    if (!helpers_) return;
    note_losses();
    if (last_ == right_) return;
    uint32_t passed = 0;
    if (passing_ && !device_.event_query(passed_, &passed).ok()) passed = 0;
    (void)helpers_->bond().check().ok();
    note_losses();
    if (passed) right_ = std::max(right_, passing_);
    if (passed || right_ >= passing_) passing_ = 0;
    if (!passing_ && last_ > right_) expect_all(lane);
}

void HelpedLoads::expect_all(sh_stream lane) {
    if (helpers_) passing_ = helpers_->bond().finish(lane, passed_).ok() ? last_ : 0;
}

// Nobody knows which of the bytes that were not checked a helper has brought right.
void HelpedLoads::note_losses() {
    const size_t distrusted = helpers_->bond().distrusted();
    if (distrusted == distrusted_) return;
    distrusted_ = distrusted;
    losses_++;
    for (size_t i = 0; i < last_of_.size(); i++) {
        if (last_of_[i] <= right_) continue;
        Unit& unit = registry_.unit(static_cast<uint32_t>(i));
        if (!unit.live) continue;
        told_ = false;
        lose(unit);
    }
    right_ = last_;
}

void HelpedLoads::lose(Unit& unit) {
    contents_.spoil(unit);
    for (Block& block : registry_.blocks_of(unit)) {
        if (!block.id) continue;
        for (const transfer::Segment& segment : block.detail->segments)
            if (segment.kept) segment.kept->forget();
    }
}

Status HelpedLoads::take_failure() {
    if (std::exchange(told_, true)) return Status();
    return Status(SH_ERROR_BACKEND,
                  "a device that helps has failed: weights that it was bringing may have been wrong in this step "
                  "and earlier ones, and are loaded again");
}

}  // namespace stagehand::core
