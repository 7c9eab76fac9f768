#include "core/runtime/runtime.h"

#include <algorithm>

#include "base/log.h"
#include "base/no_throw.h"
#include "base/size_text.h"
#include "base/unlocked.h"

namespace stagehand::core {
namespace {

constexpr int kCloseAttempts = 3;

std::string choose_name(const sh_runtime_options& options, uint16_t tag) {
    return options.name ? options.name : "runtime " + std::to_string(tag);
}

}  // namespace

Runtime::Runtime(std::shared_ptr<Device> device, const sh_runtime_options& options, std::mutex& mutex)
    : thread_handle_(device->backend().thread_handle()),
      parts_(*this, std::move(device), options.max_bytes, choose_name(options, tag_.value()), tag_.value(), mutex),
      clearance_(parts_),
      views_(parts_, clearance_),
      protections_(parts_),
      plan_(parts_, protections_, options),
      figures_(parts_, plan_, options),
      count_(parts_, figures_),
      captures_(parts_, clearance_, views_),
      graphs_(parts_, clearance_, views_, captures_, count_),
      access_(parts_, clearance_, views_, plan_, graphs_),
      readback_(parts_, views_),
      sources_(parts_, clearance_, captures_, graphs_),
      blocks_(parts_, protections_, plan_, captures_, graphs_, sources_),
      residency_(parts_, protections_, plan_, captures_, graphs_),
      steps_(parts_, plan_, captures_, graphs_, access_, count_),
      pauses_(parts_, plan_, graphs_, access_) {}

Status Runtime::create(std::shared_ptr<Device> device, const sh_runtime_options& options, std::mutex& mutex,
                       std::shared_ptr<Runtime>* out) {
    std::shared_ptr<Runtime> runtime(new Runtime(std::move(device), options, mutex));
    SH_TRY(runtime->parts_.loader.open(runtime->device()));
    SH_TRY(runtime->parts_.write_back.open());
    runtime->parts_.device->arbiter().join(*runtime);
    runtime->parts_.device->pausables().join(*runtime);
    *out = std::move(runtime);
    return Status();
}

Runtime::~Runtime() {
    parts_.device->pausables().leave(*this);
    parts_.device->arbiter().leave(*this, parts_.placement.pages());
}  // close() could not give these pages back

Status Runtime::close(Lock& lock) {
    residency_.end_spans();
    parts_.gate.close(lock);
    // Some failures pass, and memory that is in use must not be unmapped. So it is tried several times.
    Status status;
    for (int attempt = 0; attempt < kCloseAttempts; attempt++) {
        status = no_throw([&] { return plan_.give_back(lock); });
        if (status.ok()) return parts_.write_back.take_failure();  // changes may be lost
        log_line(SH_LOG_WARNING, "%s: an attempt to close the runtime failed: %s", name().c_str(), status.text());
    }
    if (!parts_.placement.pages()) return status;
    return Status(status.code(), tenant_name() + " could not give back " +
                                     exact_size_text(parts_.placement.pages() * parts_.page_bytes()) +
                                     ", which the device's budget has lost: " + status.text());
}

// Acquires and releases must be noted, because an order is followed or learned, or because something must be loaded or
// waited for.
bool Runtime::is_eventful() const {
    const bool settled = plan_.exists() && !residency_.leaving() && !captures_.under_way() && parts_.order.known() &&
                         !parts_.record.under_way();
    return !settled || !parts_.gate.is_open() || parts_.ring.size() || parts_.unordered.used() ||
           parts_.registry.hindered() || parts_.meter.measuring();
}

Status Runtime::wait_for_change(Lock& lock) {
    const Gate::Inside inside(parts_.gate);
    parts_.gate.wait(lock, [&] { return !parts_.gate.changing(); });
    return parts_.gate.usable();
}

void Runtime::try_to_change() {
    Lock lock(parts_.gate.mutex());  // a thread that presses holds no runtime's mutex
    const std::unique_ptr<Runtime, void (*)(Runtime*)> last(this, [](Runtime* runtime) { runtime->look_around(); });
    residency_.take_share(lock);
}

void Runtime::look_around() noexcept {
    eventful_ = is_eventful();
    told_.blocks.store(parts_.registry.block_count(), std::memory_order_relaxed);
    told_.bytes.store(parts_.registry.model_bytes(), std::memory_order_relaxed);
    told_.held_bytes.store(parts_.placement.pages() * parts_.page_bytes(), std::memory_order_relaxed);
    told_.cycles.store(pauses_.cycles(), std::memory_order_relaxed);
}

Pausable::Figures Runtime::pause_figures() const {
    return {parts_.gate.occupancy(), told_.blocks.load(std::memory_order_relaxed),
            told_.bytes.load(std::memory_order_relaxed), told_.held_bytes.load(std::memory_order_relaxed),
            told_.cycles.load(std::memory_order_relaxed)};
}

template <class Work>
Status Runtime::in_a_pause(Work&& work) noexcept {
    Lock lock(parts_.gate.mutex());
    const Status status = no_throw([&] { return work(lock); });
    look_around();
    return status;
}

Status Runtime::release_memory() {
    return in_a_pause([&](Lock& lock) { return pauses_.release(lock); });
}

Status Runtime::take_memory() {
    return in_a_pause([&](Lock& lock) { return pauses_.take(lock); });
}

void Runtime::run() noexcept {
    (void)in_a_pause([&](Lock&) { return pauses_.run(), Status(); }).ok();
}

Status Runtime::plan(const sh_plan_options& options, sh_plan_info* out, Lock& lock) {
    SH_TRY(options.flags & SH_PLAN_DRY_RUN ? parts_.gate.usable() : parts_.gate.running());
    if (!parts_.order.known() && !parts_.order.is_aside())
        return Status(SH_ERROR_INVALID_STATE,
                      tenant_name() + " cannot plan: no order is known; set a schedule or run a step first");
    const bool drops_graphs = options.flags & SH_PLAN_DROP_GRAPHS, dry = options.flags & SH_PLAN_DRY_RUN;
    if (dry || parts_.gate.in_step()) {
        Planner::Result result;
        SH_TRY(plan_.try_out(options, &result));
        if (out) figures_.describe(result, out);
        if (dry) return Status();
        if (drops_graphs && plan_.is_due()) graphs_.want_drop();
        plan_.want();  // the plan changes when the next step begins
        return Status();
    }
    if (parts_.gate.views())
        return Status(SH_ERROR_INVALID_STATE, tenant_name() + " cannot plan while views are held: release them first");
    plan_.use_all();
    if (plan_.exists()) plan_.look_at_changes();
    if (plan_.is_due()) {
        if (graphs_.hold_the_plan()) SH_TRY(drops_graphs ? graphs_.drop(lock) : graphs_.held());
        SH_TRY(plan_.change(lock, true));
    }
    if (out) figures_.describe(out);
    return Status();
}

Status Runtime::step_begin(const char* kind_name, Lock& lock) {
    SH_TRY(steps_.begin(kind_name, lock));
    if (!parts_.order.given() && is_eventful()) parts_.record.begin();
    return Status();
}

Status Runtime::step_end(Lock& lock) {
    SH_TRY(steps_.end());
    return residency_.leave_if_due(lock);
}

Status Runtime::synchronize(Lock& lock) {
    SH_TRY(parts_.gate.usable());
    const Gate::Inside inside(parts_.gate);
    parts_.gate.wait(lock, [&] { return parts_.loader.queued() == 0 || parts_.gate.closing(); });
    parts_.write_back.drain(lock);
    Status status = unlocked(lock, [&] {
        const Status loads = parts_.loader.synchronize(), back = parts_.write_back.synchronize();
        return loads.ok() ? back : loads;
    });
    for (Unit& unit : parts_.registry.units()) {
        Status failure;
        parts_.loader.settle(unit, &failure);
        if (status.ok()) status = failure;
    }
    parts_.loader.look();
    if (status.ok()) status = parts_.late_failure();
    return parts_.gate.note(status);
}

Status Runtime::forget(sh_stream stream) {
    if (stream == SH_STREAM_HOST) return Status();
    SH_TRY(parts_.streams.forget(stream));
    parts_.contents.forget_stream(stream);
    return Status();
}

Status Runtime::acquire(sh_block id, sh_stream stream, uint32_t flags, sh_view* out, Lock& lock) {
    SH_TRY(parts_.gate.running());
    SH_TRY(parts_.take_failure());
    return captures_.under_way() ? captures_.acquire(id, stream, out) : access_.acquire(id, stream, flags, out, lock);
}

Status Runtime::acquire_many(std::span<const sh_block> ids, sh_stream stream, uint32_t flags,
                             std::span<sh_view* const> out, Lock& lock) {
    SH_TRY(parts_.gate.running());
    SH_TRY(parts_.take_failure());
    for (const sh_block id : ids)
        if (!parts_.registry.find(id)) return parts_.unknown_block(id);
    return captures_.under_way() ? captures_.acquire_many(ids, stream, out)
                                 : access_.acquire_many(ids, stream, flags, out, lock);
}

Status Runtime::release(sh_block id, sh_stream stream, Lock& lock) {
    Block* const block = parts_.registry.find(id);
    if (!block) return parts_.unknown_block(id);
    if (block->held == block->taking)
        return Status(SH_ERROR_INVALID_STATE,
                      parts_.registry.name_of(*block) + " cannot be released: no view of it is held");
    if (parts_.gate.closing()) return parts_.gate.usable();
    if (captures_.under_way()) return captures_.release(*block, stream);
    SH_TRY(access_.release(*block, stream));
    return residency_.leave_if_due(lock);
}

Status Runtime::prefetch(std::span<const sh_block> ids, Lock& lock) {
    SH_TRY(parts_.gate.running());
    for (const sh_block id : ids)
        if (!parts_.registry.find(id)) return parts_.unknown_block(id);
    return captures_.under_way() ? Status() : access_.prefetch(ids, lock);  // in a capture, the hint is ignored
}

Status Runtime::read(sh_block id, sh_stream stream, uint64_t offset, void* buffer, uint64_t bytes, Lock& lock) {
    SH_TRY(parts_.gate.usable());
    SH_TRY(captures_.only_outside());
    return readback_.read(id, stream, offset, buffer, bytes, lock);
}

Status Runtime::verify(sh_block id, sh_stream stream, Lock& lock) {
    SH_TRY(parts_.gate.usable());
    SH_TRY(captures_.only_outside());
    const Status status = readback_.verify(id, stream, lock);
    const Status left = residency_.leave_if_due(lock);
    return status.ok() ? left : status;
}

Status Runtime::set_pressure(sh_runtime* handle, sh_pressure_fn pressure, void* user_data, Lock& lock) {
    const Gate::Inside inside(parts_.gate);
    return unlocked(lock, [&] {
        pressure_.set(handle, pressure, user_data);
        return Status();
    });
}

Status Runtime::capture_begin(sh_stream stream) {
    SH_TRY(captures_.check(stream));
    SH_TRY(parts_.gate.running());
    // Memory that others have yet to give up is no reason to plan first, because runtimes with graphs may keep it for a
    // long time.
    const bool has_to_change = plan_.is_wanted() || parts_.device->arbiter().has_to_give(*this);
    if (!plan_.exists() || !parts_.order.known() || (has_to_change && !graphs_.hold_the_plan()))
        return Status(SH_ERROR_INVALID_STATE,
                      tenant_name() + " must make a plan before a stream captures: call sh_plan() first");
    return captures_.begin(stream);
}

Status Runtime::capture_end(sh_stream stream, uint64_t* out_graph) {
    if (out_graph) graphs_.expect_one();
    std::unique_ptr<Graph> graph;
    SH_TRY(captures_.end(stream, out_graph ? &graph : nullptr));
    if (out_graph) *out_graph = graphs_.add(std::move(graph));
    return Status();
}

Status Runtime::graph_destroy(uint64_t graph, Lock& lock) {
    SH_TRY(graphs_.destroy(graph, lock));
    return residency_.leave_if_due(lock);
}

}  // namespace stagehand::core
