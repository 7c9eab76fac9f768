#include "core/runtime/gate.h"

#include "base/log.h"

namespace stagehand::core {

Status Gate::usable() const {
    if (lost())
        return Status(SH_ERROR_RUNTIME_LOST, title() + " was lost after an earlier failure and can only be destroyed");
    if (closing()) return Status(SH_ERROR_CANCELLED, title() + " is being destroyed");
    return Status();
}

Status Gate::unknown_block(sh_block id) const {
    SH_TRY(usable());
    return Status(SH_ERROR_INVALID_HANDLE, "block " + std::to_string(id) + " is not a block of " + title());
}

Status Gate::check_blocks(Registry& registry, std::span<const sh_block> ids) const {
    for (const sh_block id : ids)
        if (!registry.find(id)) return unknown_block(id);
    return Status();
}

Status Gate::running() const {
    SH_TRY(usable());
    if (!is_away()) return Status();
    return Status(SH_ERROR_INVALID_STATE,
                  title() + " is released, so its blocks are not on the device: call sh_resume() first");
}

Status Gate::no_capture() const {
    return capturing()
               ? Status(SH_ERROR_INVALID_STATE,
                        title() + " does not allow this call while a capture is under way, until sh_capture_end()")
               : Status();
}

Status Gate::at_edge(const char* what) const {
    if (!in_step() && !views()) return Status();
    return Status(SH_ERROR_INVALID_STATE,
                  title() + " cannot " + what +
                      (in_step() ? " during a step: end the step first" : " while views are held: release them first"));
}

Status Gate::unused() const {
    const struct {
        const Users& users;
        const char *own, *others;
    } uses[] = {
        {captures_, "a stream captures it: end the capture first", "another thread captures it"},
        {launches_, "a graph is entered: leave it first", "another thread has entered a graph"},
        {steps_, "a step is under way: end it first", "a step of another thread is under way"},
        {views_, "views are held: release them first", "other threads hold views"},
    };
    const auto refusal = [&](sh_status code, const char* use) {
        return Status(code, title() + " cannot be released while " + use);
    };
    for (const auto& use : uses)
        if (use.users.are_own()) return refusal(SH_ERROR_INVALID_STATE, use.own);
    for (const auto& use : uses)
        if (use.users.count()) return refusal(SH_ERROR_BUSY, use.others);
    return Status();
}

Status Gate::note(Status status) {
    if (status.code() != SH_ERROR_RUNTIME_LOST && status.code() != SH_ERROR_DEVICE_LOST) return status;
    if (phase_ == Phase::open) phase_ = Phase::lost;
    occupancy_.store(SH_OCCUPANCY_LOST, std::memory_order_relaxed);
    stats_.lost = 1;
    log_line(SH_LOG_ERROR, "%s is lost: %s", name_.c_str(), status.text());
    return status;
}

void Gate::close(Lock& lock) {
    phase_ = Phase::closing;
    changed_.notify_all();
    changed_.wait(lock, [&] { return inside_ == 0; });
}

Gate::Inside::~Inside() {
    gate_.inside_--;
    if (gate_.closing()) gate_.changed_.notify_all();
}

Gate::Bringing::Bringing(Gate& gate, Unit& unit) : gate_(gate), unit_(unit) {
    unit_.bringing = true;
    gate_.bringings_++;
}

Gate::Bringing::~Bringing() {
    unit_.bringing = false;
    gate_.bringings_--;
    gate_.changed_.notify_all();
}

Gate::ClosedDoor::~ClosedDoor() {
    gate_.changing_ = false;
    gate_.changed_.notify_all();
}

}  // namespace stagehand::core
