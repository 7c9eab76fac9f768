// A runtime's life and its steps.
#include "core/runtime/runtime.h"

#include <algorithm>

#include "base/log.h"
#include "base/size_text.h"
#include "telemetry/trace.h"

namespace stagehand::core {
namespace {

constexpr int kCloseAttempts = 3;

std::string choose_name(const sh_runtime_options& options, uint16_t tag) {
    return options.name ? options.name : "runtime " + std::to_string(tag);
}

}  // namespace

Runtime::Runtime(std::shared_ptr<Device> device, const sh_runtime_options& options, std::mutex& mutex)
    : device_(std::move(device)), thread_handle_(device_->backend().thread_handle()), name_(choose_name(options, tag_.value())),
      max_held_(std::max(1u, options.max_held)),
      max_pages_(options.max_bytes ? options.max_bytes / device_->page_bytes() : UINT64_MAX),
      unordered_pages_(options.unordered_bytes / device_->page_bytes() + (options.unordered_bytes % device_->page_bytes() != 0)),
      share_wait_ns_(options.share_wait_ns), mutex_(mutex),
      events_(device_->backend()), streams_(device_->backend(), events_),
      registry_(device_->backend(), device_->page_bytes(), tag_.value()),
      placement_(device_->backend(), device_->pool(), registry_, ring_),
      loader_(device_->backend(), device_->staging(), registry_, ring_, streams_, events_, mutex_, changed_, stats_, name_),
      write_back_(device_->backend(), device_->staging(), registry_, streams_, events_, mutex_, changed_, stats_, name_),
      unordered_(registry_, order_, placement_, loader_, write_back_, streams_, stats_), prefetcher_(registry_, ring_, order_, loader_),
      meter_(device_->backend()), planner_(registry_) {
    view_flags_ = device_->backend().has(SH_BACKEND_FIXED_ADDRESSES) ? SH_VIEW_FIXED_ADDRESS : 0;
    stats_.struct_size = sizeof stats_;
    before_step_ = stats_;
}

Status Runtime::create(std::shared_ptr<Device> device, const sh_runtime_options& options, std::mutex& mutex, std::shared_ptr<Runtime>* out) {
    std::shared_ptr<Runtime> runtime(new Runtime(std::move(device), options, mutex));
    SH_TRY(runtime->loader_.open());
    SH_TRY(runtime->write_back_.open());
    runtime->device_->arbiter().join(*runtime);
    *out = std::move(runtime);
    return Status();
}

Runtime::~Runtime() {
    device_->arbiter().leave(*this, placement_.pages());   // that close() could not give back
    for (auto& graph : graphs_) events_.give(&graph->done);
    for (Unit& unit : registry_.units()) {
        for (UnitUse& use : unit.uses) events_.give(&use.event);
        events_.give(&unit.written_back);
    }
}

Status Runtime::close(Lock& lock) {
    closing_ = true;
    for (const auto how : {telemetry::Residency::kept, telemetry::Residency::reserved, telemetry::Residency::guest})
        end_span(how, placement_.pages() * device_->page_bytes());
    changed_.notify_all();
    changed_.wait(lock, [&] { return waiters_ == 0; });
    // Some failures pass; what is in flight must not be unmapped.
    Status status;
    for (int attempt = 0; attempt < kCloseAttempts; attempt++) {
        status = give_back(lock);
        if (status.ok()) return status;
        log_line(SH_LOG_WARNING, "%s: closing: %s", name_.c_str(), status.text());
    }
    if (!placement_.pages()) return status;
    return Status(status.code(), tenant_name() + " could not give back " + exact_size_text(placement_.pages() * device_->page_bytes()) +
                                     ", which are lost to the device's budget: " + status.text());
}

Status Runtime::give_back(Lock& lock) {
    SH_TRY(quiesce(lock));
    for (Unit& unit : registry_.units())
        if (unit.memory == Memory::unordered) SH_TRY(placement_.unmap_whole(unit));
    SH_TRY(placement_.clear());
    return device_->pool().trim(0);
}

Status Runtime::usable() const {
    if (lost_) return Status(SH_ERROR_RUNTIME_LOST, tenant_name() + " was lost by an earlier failure; it can only be destroyed");
    if (closing_) return Status(SH_ERROR_CANCELLED, tenant_name() + " is being destroyed");
    return Status();
}

// A failure after which device memory cannot be trusted ends the runtime.
Status Runtime::note(Status status) {
    if (status.code() != SH_ERROR_RUNTIME_LOST && status.code() != SH_ERROR_DEVICE_LOST) return status;
    lost_ = true;
    stats_.lost = 1;
    eventful_ = true;
    for (Unit& unit : registry_.units()) unit.ready = false;
    log_line(SH_LOG_ERROR, "%s is lost: %s", tenant_name().c_str(), status.text());
    return status;
}

void Runtime::update_eventful() {
    eventful_ = true;
    const auto units = registry_.units();
    if (!planned_ || ring_.size() || leaving_) return;
    for (Unit& unit : units) {
        Status failure;   // the next acquire loads the unit anew and tells
        loader_.settle(unit, &failure);
    }
    const bool quiet = order_.known() && !meter_.measuring() &&
                       std::all_of(units.begin(), units.end(), [](const Unit& u) { return !u.live || (u.ready && u.memory == Memory::planned); });
    eventful_ = !quiet;
}

Status Runtime::step_begin(Lock& lock) {
    SH_TRY(usable());
    SH_TRY(drop_graphs_if_wanted(lock));
    SH_TRY(only_outside_capture());
    if (in_step_) return Status(SH_ERROR_INVALID_STATE, tenant_name() + ": a step is under way already");
    SH_TRY(write_back_.take_failure());
    trimmed_to_ = UINT64_MAX;
    device_->notice_free_memory(false);
    device_->arbiter().note_step(*this);
    if (replan_due() && views_ == 0 && !plan_is_held()) {
        SH_TRY(replan(lock, true));
        SH_TRY(usable());
    }
    in_step_ = true;
    step_began_ns_ = device_->backend().now_ns();
    before_step_ = stats_;
    order_.to_edge();
    if (!order_.given() && eventful_) order_.record_begin();
    if (eventful_) update_eventful();
    if (may_prefetch()) prefetcher_.pump(step_began_ns_);
    return Status();
}

Status Runtime::step_end(Lock& lock) {
    if (!in_step_) return Status(SH_ERROR_INVALID_STATE, tenant_name() + ": no step is under way");
    in_step_ = false;
    const uint64_t now = device_->backend().now_ns();
    stats_.steps++;
    stats_.last_step_ns = now - step_began_ns_;
    Status status = streams_.record_all();
    if (order_.recording()) {
        order_.record_end();
        if (auto learned = order_.learned(); !learned.empty()) {
            // Units that must not be planned stay what they are.
            std::erase_if(learned, [&](const Order::Entry& entry) { return registry_.unit(entry.unit).unordered || !registry_.unit(entry.unit).live; });
            if (!learned.empty()) {
                order_.set(std::move(learned), registry_.units().size(), false);
                replan_wanted_ = true;
                eventful_ = true;
            }
        }
    }
    order_.to_edge();
    if (may_prefetch() && (!replan_wanted_ || plan_is_held())) prefetcher_.pump(now);
    telemetry::trace_step(name_.c_str(), stats_.steps, step_began_ns_, now);
    if (Status written = log_step(before_step_); status.ok()) status = written;
    if (status.ok()) status = write_back_.take_failure();
    SH_TRY(note(status));
    return leave_if_due(lock);
}

Status Runtime::synchronize(Lock& lock) {
    SH_TRY(usable());
    waiters_++;
    changed_.wait(lock, [&] { return loader_.queued() == 0 || closing_; });
    write_back_.drain(lock);
    lock.unlock();
    Status status = loader_.synchronize();
    if (Status back = write_back_.synchronize(); status.ok()) status = back;
    lock.lock();
    waiters_--;
    changed_.notify_all();
    for (Unit& unit : registry_.units()) {
        Status failure;
        loader_.settle(unit, &failure);
        if (status.ok()) status = failure;
    }
    if (status.ok()) status = write_back_.take_failure();
    return note(status);
}

Status Runtime::forget(sh_stream stream) {
    if (stream == SH_STREAM_HOST) return Status();
    SH_TRY(streams_.forget(stream));
    for (Unit& unit : registry_.units()) {
        // The event stays with the unit: a staged load may still be about to wait for it.
        for (UnitUse& use : unit.uses)
            if (use.stream == stream) use.stream = SH_STREAM_HOST;
    }
    return Status();
}

// The counters, and the sizes, which are found out when they are asked for.
Status Runtime::log_step(const sh_runtime_stats& before) {
    if (!step_log_.is_open()) return Status();
    sh_runtime_stats after = stats_;
    stats(&after);
    return step_log_.write(name_, before, after);
}

void Runtime::stats(sh_runtime_stats* out) const {
    const uint32_t size = out->struct_size;
    *out = stats_;
    out->struct_size = size;
    out->resident_bytes = plan_.resident_pages * device_->page_bytes();
    out->ring_bytes = uint64_t(plan_.ring_pages) * device_->page_bytes();
    out->unordered_bytes = plan_.unordered_pages * device_->page_bytes();
    out->held_bytes = placement_.pages() * device_->page_bytes();
    const Arbiter::Standing standing = device_->arbiter().standing(*this);
    out->share_bytes = standing.share * device_->page_bytes();
    out->protected_bytes = standing.kept * device_->page_bytes();
    out->reserved_bytes = standing.reserved * device_->page_bytes();
    out->guest_bytes = standing.guest * device_->page_bytes();
}

}  // namespace stagehand::core
