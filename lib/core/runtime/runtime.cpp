// A runtime's life and its steps.
#include "core/runtime/runtime.h"

#include <algorithm>

#include "base/log.h"
#include "base/no_throw.h"
#include "base/size_text.h"
#include "base/unlocked.h"
#include "telemetry/trace.h"

namespace stagehand::core {
namespace {

constexpr int kCloseAttempts = 3;

std::string choose_name(const sh_runtime_options& options, uint16_t tag) {
    return options.name ? options.name : "runtime " + std::to_string(tag);
}

}  // namespace

Runtime::Runtime(std::shared_ptr<Device> device, const sh_runtime_options& options, std::mutex& mutex)
    : device_(std::move(device)), thread_handle_(device_->backend().thread_handle()),
      max_held_(std::max(1u, options.max_held)),
      max_pages_(options.max_bytes ? options.max_bytes / device_->page_bytes() : UINT64_MAX),
      unordered_pages_(options.unordered_bytes / device_->page_bytes() + (options.unordered_bytes % device_->page_bytes() != 0)),
      share_wait_ns_(options.share_wait_ns), gate_(mutex, choose_name(options, tag_.value()), stats_),
      events_(device_->backend()), streams_(device_->backend(), events_),
      registry_(device_->backend(), device_->page_bytes(), tag_.value()),
      contents_(device_->backend(), registry_, ring_, streams_, events_), changes_(device_->backend(), registry_, events_),
      placement_(device_->backend(), device_->pool(), registry_, ring_, contents_),
      loader_(device_->backend(), device_->staging(), registry_, ring_, contents_, changes_, events_, gate_.mutex(), gate_.changed(), stats_, gate_.name()),
      write_back_(device_->backend(), device_->staging(), registry_, changes_, streams_, gate_.mutex(), gate_.changed(), stats_, gate_.name()),
      unordered_(registry_, order_, contents_, changes_, placement_, loader_, write_back_, streams_, stats_),
      prefetcher_(registry_, ring_, contents_, order_, loader_),
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
}

Status Runtime::close(Lock& lock) {
    for (const auto how : {telemetry::Residency::kept, telemetry::Residency::reserved, telemetry::Residency::guest})
        end_span(how, placement_.pages() * device_->page_bytes());
    eventful_ = true;
    gate_.close(lock);
    // Some failures pass; what is in flight must not be unmapped.
    Status status;
    for (int attempt = 0; attempt < kCloseAttempts; attempt++) {
        status = give_back(lock);
        if (status.ok()) return status;
        log_line(SH_LOG_WARNING, "%s: closing: %s", gate_.name().c_str(), status.text());
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

// Acquires and releases must be noted: an order is followed or learned, something is to be loaded, or has to be waited for.
bool Runtime::is_eventful() const {
    return !planned_ || gate_.changing() || !gate_.is_open() || leaving_ || capture_ || ring_.size() || unordered_.used() || registry_.hindered() ||
           !order_.known() || order_.recording() || meter_.measuring();
}

Status Runtime::step_begin(Lock& lock) {
    SH_TRY(usable());
    SH_TRY(drop_graphs_if_wanted(lock));
    SH_TRY(only_outside_capture());
    if (gate_.in_step()) return Status(SH_ERROR_INVALID_STATE, tenant_name() + ": a step is under way already");
    SH_TRY(write_back_.take_failure());
    trimmed_to_ = UINT64_MAX;
    device_->notice_free_memory(false);
    device_->arbiter().note_step(*this);
    if (replan_due() && gate_.views() == 0 && !plan_is_held()) {
        SH_TRY(replan(lock, true));
        SH_TRY(usable());
    }
    gate_.begin_step();
    step_began_ns_ = device_->backend().now_ns();
    before_step_ = stats_;
    order_.to_edge();
    if (!ring_.size()) loader_.settle_all();   // what has come by now need not be looked at again
    if (!order_.given() && is_eventful()) order_.record_begin();
    if (may_prefetch()) prefetcher_.pump(step_began_ns_);
    return Status();
}

// The order of the step that has ended, if it is one.
void Runtime::learn() {
    auto learned = order_.learned();
    // Units that must not be planned stay what they are.
    std::erase_if(learned, [&](const Order::Entry& entry) { return registry_.unit(entry.unit).unordered || !registry_.unit(entry.unit).live; });
    if (learned.empty()) return;
    order_.set(std::move(learned), registry_.units().size(), false);
    replan_wanted_ = true;
}

Status Runtime::step_end(Lock& lock) {
    if (!gate_.in_step()) return Status(SH_ERROR_INVALID_STATE, tenant_name() + ": no step is under way");
    gate_.end_step();
    const uint64_t now = device_->backend().now_ns();
    stats_.steps++;
    stats_.last_step_ns = now - step_began_ns_;
    Status status = streams_.record_all();
    if (order_.recording()) {
        order_.record_end();
        (void)no_throw([&] {   // else it is learned from another step
            learn();
            return Status();
        }).ok();
    }
    order_.to_edge();
    if (may_prefetch() && (!replan_wanted_ || plan_is_held())) prefetcher_.pump(now);
    telemetry::trace_step(gate_.name().c_str(), stats_.steps, step_began_ns_, now);
    if (Status written = no_throw([&] { return log_step(before_step_); }); status.ok()) status = written;
    if (status.ok()) status = write_back_.take_failure();
    SH_TRY(note(status));
    return leave_if_due(lock);
}

Status Runtime::synchronize(Lock& lock) {
    SH_TRY(usable());
    const Gate::Inside inside(gate_);
    gate_.wait(lock, [&] { return loader_.queued() == 0 || gate_.closing(); });
    write_back_.drain(lock);
    Status status = unlocked(lock, [&] {
        const Status loads = loader_.synchronize(), back = write_back_.synchronize();
        return loads.ok() ? back : loads;
    });
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
    contents_.forget_stream(stream);
    return Status();
}

// The counters, and the sizes, which are found out when they are asked for.
Status Runtime::log_step(const sh_runtime_stats& before) {
    if (!step_log_.is_open()) return Status();
    sh_runtime_stats after = stats_;
    stats(&after);
    return step_log_.write(gate_.name(), before, after);
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
