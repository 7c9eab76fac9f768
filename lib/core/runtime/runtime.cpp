#include "core/runtime/runtime.h"

#include <algorithm>

#include "base/log.h"
#include "base/no_throw.h"
#include "base/size_text.h"
#include "base/unlocked.h"
#include "core/device/load_carrier.h"

namespace stagehand::core {
namespace {

constexpr int kCloseAttempts = 3;

std::string choose_name(const sh_runtime_options& options, uint16_t tag) {
    return options.name ? options.name : "runtime " + std::to_string(tag);
}

}  // namespace

Runtime::Runtime(std::shared_ptr<Device> device, const sh_runtime_options& options, std::mutex& mutex)
    : thread_handle_(device->backend().thread_handle()),
      share_(*this, std::move(device), options.max_bytes),
      gate_(mutex, choose_name(options, tag_.value())),
      carrier_(make_carrier(*share_.device, gate_.name(), share_.max_pages)),
      memory_(*share_.device, *carrier_, tag_.value()),
      movers_(*share_.device, *carrier_, memory_, gate_),
      step_order_(*share_.device, memory_, movers_, gate_),
      clearance_(gate_, memory_, movers_),
      views_(gate_, memory_, movers_, step_order_, clearance_),
      protections_(gate_, memory_, step_order_),
      plan_(gate_, share_, memory_, movers_, step_order_, protections_, options),
      figures_(gate_, share_, memory_, step_order_, plan_, options),
      count_(gate_, share_, figures_),
      captures_(gate_, share_, memory_, clearance_, views_),
      residents_(gate_, memory_, movers_, clearance_),
      graphs_(gate_, memory_, movers_, step_order_, residents_, views_, count_),
      fetcher_(gate_, memory_, movers_, step_order_, clearance_, views_, plan_, graphs_),
      access_(gate_, memory_, movers_, step_order_, views_, plan_, fetcher_),
      readback_(gate_, memory_, movers_, views_),
      sources_(gate_, memory_, movers_, step_order_, clearance_, graphs_),
      blocks_(gate_, share_, memory_, movers_, step_order_, protections_, plan_, graphs_, sources_),
      residency_(gate_, share_, memory_, step_order_, protections_, plan_, graphs_),
      steps_(gate_, memory_, movers_, step_order_, plan_, graphs_, access_, count_),
      pauses_(gate_, memory_, plan_, graphs_, access_) {}

Status Runtime::create(std::shared_ptr<Device> device, const sh_runtime_options& options, std::mutex& mutex,
                       std::shared_ptr<Runtime>* out) {
    std::shared_ptr<Runtime> runtime(new Runtime(std::move(device), options, mutex));
    SH_TRY(runtime->movers_.open(runtime->device()));
    runtime->share_.arbiter().join(*runtime);
    runtime->share_.device->pausables().join(*runtime);
    *out = std::move(runtime);
    return Status();
}

Runtime::~Runtime() {
    share_.device->pausables().leave(*this);
    share_.arbiter().leave(*this, memory_.placement.pages());
}  // close() could not give these pages back

Status Runtime::close(Lock& lock) {
    residency_.end_spans();
    gate_.close(lock);
    // Some failures pass, and memory that is in use must not be unmapped. So it is tried several times.
    Status status;
    for (int attempt = 0; attempt < kCloseAttempts; attempt++) {
        status = no_throw([&] { return plan_.give_back(lock); });
        if (status.ok()) return movers_.write_back.take_failure();  // changes may be lost
        log_line(SH_LOG_WARNING, "%s: an attempt to close the runtime failed: %s", name().c_str(), status.text());
    }
    if (!memory_.placement.pages()) return status;
    return Status(status.code(), tenant_name() + " could not give back " +
                                     exact_size_text(memory_.placement.pages() * share_.page_bytes()) +
                                     ", which the device's budget has lost: " + status.text());
}

// Acquires and releases must be noted, because an order is followed or learned, or because something must be loaded or
// waited for.
bool Runtime::is_eventful() const {
    const bool settled = plan_.exists() && !residency_.leaving() && !gate_.capturing() && step_order_.is_settled();
    return !settled || !gate_.is_open() || memory_.ring.size() || memory_.registry.hindered();
}

Status Runtime::wait_for_change(Lock& lock) {
    const Gate::Inside inside(gate_);
    gate_.wait(lock, [&] { return !gate_.changing(); });
    return gate_.usable();
}

void Runtime::try_to_change() {
    Lock lock(gate_.mutex());  // a thread that presses holds no runtime's mutex
    const std::unique_ptr<Runtime, void (*)(Runtime*)> last(this, [](Runtime* runtime) { runtime->look_around(); });
    residency_.take_share(lock);
}

void Runtime::look_around() noexcept {
    eventful_ = is_eventful();
    told_.blocks.store(memory_.registry.block_count(), std::memory_order_relaxed);
    told_.bytes.store(memory_.registry.model_bytes(), std::memory_order_relaxed);
    told_.held_bytes.store(memory_.placement.pages() * share_.page_bytes(), std::memory_order_relaxed);
    told_.cycles.store(pauses_.cycles(), std::memory_order_relaxed);
}

Pausable::Figures Runtime::pause_figures() const {
    return {gate_.occupancy(), told_.blocks.load(std::memory_order_relaxed),
            told_.bytes.load(std::memory_order_relaxed), told_.held_bytes.load(std::memory_order_relaxed),
            told_.cycles.load(std::memory_order_relaxed)};
}

template <class Work>
Status Runtime::in_a_pause(Work&& work) noexcept {
    Lock lock(gate_.mutex());
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
    PlanResult result;
    SH_TRY(steps_.plan(options, &result, lock));
    if (out) figures_.describe(result, out);
    return Status();
}

Status Runtime::step_begin(const char* kind_name, Lock& lock) {
    SH_TRY(steps_.begin(kind_name, lock));
    if (is_eventful()) step_order_.record_step();
    return Status();
}

Status Runtime::step_end(Lock& lock) {
    SH_TRY(steps_.end());
    return residency_.leave_if_due(lock);
}

Status Runtime::synchronize(Lock& lock) {
    SH_TRY(gate_.usable());
    const Gate::Inside inside(gate_);
    return gate_.note(movers_.synchronize(lock));
}

Status Runtime::forget(sh_stream stream) {
    return stream == SH_STREAM_HOST ? Status() : memory_.contents.forget_stream(stream);
}

Status Runtime::acquire(sh_block id, sh_stream stream, uint32_t flags, sh_view* out, Lock& lock) {
    SH_TRY(gate_.running());
    SH_TRY(gate_.note(movers_.take_failure()));
    return gate_.capturing() ? captures_.acquire(id, stream, out) : access_.acquire(id, stream, flags, out, lock);
}

Status Runtime::acquire_many(std::span<const sh_block> ids, sh_stream stream, uint32_t flags,
                             std::span<sh_view* const> out, Lock& lock) {
    SH_TRY(gate_.running());
    SH_TRY(gate_.note(movers_.take_failure()));
    return gate_.capturing() ? captures_.acquire_many(ids, stream, out)
                             : access_.acquire_many(ids, stream, flags, out, lock);
}

Status Runtime::release(sh_block id, sh_stream stream, Lock& lock) {
    Block* const block = memory_.registry.find(id);
    if (!block) return gate_.unknown_block(id);
    if (block->held == block->taking)
        return Status(SH_ERROR_INVALID_STATE,
                      memory_.registry.name_of(*block) + " cannot be released: no view of it is held");
    if (gate_.closing()) return gate_.usable();
    if (gate_.capturing()) return captures_.release(*block, stream);
    SH_TRY(access_.release(*block, stream));
    return residency_.leave_if_due(lock);
}

Status Runtime::prefetch(std::span<const sh_block> ids, Lock& lock) {
    SH_TRY(gate_.running());
    SH_TRY(gate_.check_blocks(memory_.registry, ids));
    return gate_.capturing() ? Status() : access_.prefetch(ids, {}, lock);  // in a capture, the hint is ignored
}

Status Runtime::acquire_members(sh_set set, std::span<const uint32_t> members, sh_stream stream, uint32_t flags,
                                sh_view* out_pool, uint32_t* out_slots, Lock& lock) {
    SH_TRY(gate_.running());
    SH_TRY(gate_.note(movers_.take_failure()));
    SH_TRY(gate_.no_capture());
    return access_.acquire_members(set, members, stream, flags, out_pool, out_slots, lock);
}

Status Runtime::release_members(sh_set set, std::span<const uint32_t> members, sh_stream stream, Lock& lock) {
    if (gate_.closing()) return gate_.usable();
    SH_TRY(access_.release_members(set, members, stream));
    return residency_.leave_if_due(lock);
}

Status Runtime::prefetch_members(sh_set set, std::span<const uint32_t> members, std::span<const float> chances,
                                 Lock& lock) {
    SH_TRY(gate_.running());
    return access_.prefetch_members(set, members, chances, lock);
}

Status Runtime::read(sh_block id, sh_stream stream, uint64_t offset, void* buffer, uint64_t bytes, Lock& lock) {
    SH_TRY(gate_.usable());
    SH_TRY(gate_.no_capture());
    return readback_.read(id, stream, offset, buffer, bytes, lock);
}

Status Runtime::verify(sh_block id, sh_stream stream, Lock& lock) {
    SH_TRY(gate_.usable());
    SH_TRY(gate_.no_capture());
    const Status status = readback_.verify(id, stream, lock);
    const Status left = residency_.leave_if_due(lock);
    return status.ok() ? left : status;
}

Status Runtime::set_pressure(sh_runtime* handle, sh_pressure_fn pressure, void* user_data, Lock& lock) {
    const Gate::Inside inside(gate_);
    return unlocked(lock, [&] {
        pressure_.set(handle, pressure, user_data);
        return Status();
    });
}

Status Runtime::capture_begin(sh_stream stream) {
    SH_TRY(captures_.check(stream));
    SH_TRY(gate_.running());
    // Memory that others have yet to give up is no reason to plan first, because runtimes with graphs may keep it for a
    // long time.
    const bool has_to_change = plan_.is_wanted() || share_.arbiter().has_to_give(*this);
    if (!plan_.exists() || !step_order_.order.known() || (has_to_change && !graphs_.hold_the_plan()))
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
