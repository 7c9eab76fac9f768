// Runtime: one model on a device. Ties the registry, the order, the plan and the loads together for the calls of the interface.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <stagehand/residency.h>
#include <stagehand/runtime.h>
#include <stagehand/streaming.h>
#include <stagehand/telemetry.h>

#include "base/status.h"
#include "core/movement/capture.h"
#include "core/movement/graph.h"
#include "core/movement/loader.h"
#include "core/movement/write_back.h"
#include "core/device/arbiter.h"
#include "core/device/device.h"
#include "core/device/event_pool.h"
#include "core/memory/changes.h"
#include "core/memory/contents.h"
#include "core/memory/placement.h"
#include "core/memory/registry.h"
#include "core/memory/ring.h"
#include "core/memory/stream_table.h"
#include "core/runtime/compute_meter.h"
#include "core/runtime/gate.h"
#include "core/runtime/order.h"
#include "core/runtime/planner.h"
#include "core/runtime/prefetcher.h"
#include "core/runtime/runtime_tag.h"
#include "core/runtime/unordered_cache.h"
#include "telemetry/step_log.h"
#include "telemetry/trace.h"

namespace stagehand::core {

// Every public method but create() and those of Tenant is called with the runtime's mutex held, through `lock` where it may be given
// up meanwhile. The mutex belongs to the handle's slot and outlives the runtime.
class Runtime final : public Tenant {
public:
    static Status create(std::shared_ptr<Device> device, const sh_runtime_options& options, std::mutex& mutex, std::shared_ptr<Runtime>* out);
    ~Runtime() override;

    // Blocks: runtime_blocks.cpp
    Status register_blocks(std::span<const sh_block_desc* const> descs, sh_block* out_ids);
    Status unregister_blocks(std::span<const sh_block> ids, Lock& lock);
    Status block_state(sh_block id, sh_block_state* out);
    Status invalidate(std::span<const sh_block> ids);
    Status update_begin(std::span<const sh_block> ids, Lock& lock);
    Status update_end(std::span<const sh_block> ids);
    void end_update(std::span<const sh_block> ids);   // without a look at what has changed
    Status mark_dirty(sh_block id);
    Status write_back(std::span<const sh_block> ids, Lock& lock);

    // Order and plan: runtime_plan.cpp
    Status set_schedule(std::span<const sh_use* const> uses);
    Status plan(const sh_plan_options& options, sh_plan_info* out, Lock& lock);
    void try_to_change() override;
    void feel_pressure(uint64_t pages) override;
    std::string tenant_name() const override { return gate_.title(); }

    // A step: runtime.cpp
    Status step_begin(Lock& lock);
    Status step_end(Lock& lock);
    Status synchronize(Lock& lock);
    Status forget(sh_stream stream);
    void stats(sh_runtime_stats* out) const;
    Status open_step_log(const char* path) { return step_log_.open(path); }
    // Makes callers that wait give up, and waits until they have and until nothing is in flight. On an error memory is not given back.
    Status close(Lock& lock);
    // How the runtime names a stream: every other call takes names.
    sh_stream name_of_stream(sh_stream handle) const { return handle == thread_handle_ ? thread_stream::of_this_thread() : handle; }
    // The plan is being changed, and the mutex was given up meanwhile: who comes now has to wait first.
    bool changing() const { return gate_.changing(); }
    Status wait_for_change(Lock& lock);
    // Before a call gives up the mutex for good: whether the next may take the short way.
    void look_around() noexcept { eventful_ = is_eventful(); }

    // Views: runtime_views.cpp
    // The bytes are there and nothing has to be noted: true, and the view is held. Else acquire() must be called.
    bool acquire_ready(sh_block id, sh_view* out) noexcept {
        Block* const block = registry_.find(id);
        if (!block || telemetry::trace_on()) [[unlikely]] return false;
        Unit& unit = registry_.unit(block->unit);
        if (eventful_ || !unit.ready()) return false;
        block->held++;
        unit.held++;
        gate_.view_taken();
        stats_.acquires++;
        stats_.hits++;
        stats_.in_time++;
        fill_view(*block, unit, SH_VIEW_HIT, out);
        return true;
    }
    Status acquire(sh_block id, sh_stream stream, uint32_t flags, sh_view* out, Lock& lock);
    Status acquire_many(std::span<const sh_block> ids, sh_stream stream, uint32_t flags, std::span<sh_view* const> out, Lock& lock);
    // A view of a resident block ends, and nothing has to be fenced, loaded, written or told: true. Else release() must be called.
    bool release_plainly(sh_block id, sh_stream stream) noexcept {
        Block* const block = registry_.find(id);
        if (eventful_ || !block || block->held == 0 || telemetry::trace_on()) [[unlikely]] return false;
        Unit& unit = registry_.unit(block->unit);
        if (!unit.plain_release() || write_back_.has_failure()) return false;
        uint64_t streams = 0;
        if (stream != SH_STREAM_HOST && !(gate_.in_step() && streams_.mark_if_last(stream, &streams))) return false;
        block->held--;
        unit.held--;
        gate_.view_ended();
        contents_.note_release(unit, streams);
        return true;
    }
    Status release(sh_block id, sh_stream stream, Lock& lock);
    // What had to wait for the last view, or for the step's end.
    Status leave_if_due(Lock& lock);
    Status prefetch(std::span<const sh_block> ids, Lock& lock);
    Status read(sh_block id, sh_stream stream, uint64_t offset, void* buffer, uint64_t bytes, Lock& lock);

    // What stays on the device: runtime_residency.cpp
    Device& device() { return *device_; }
    const std::string& name() const { return gate_.name(); }
    Status protect(std::span<const sh_block> ids);
    Status unprotect(std::span<const sh_block> ids);
    void keep_begin();
    void keep_end();
    Status reserve(uint64_t bytes, policy::Priority priority, Lock& lock);
    void release_reservation();
    Status guest_begin(const sh_guest_options& options, Lock& lock);
    Status guest_end(Lock& lock);
    Status trim(uint64_t keep_bytes, uint64_t* out_bytes, Lock& lock);
    // `handle` is what the callback gets. Waits for a call that is under way.
    Status set_pressure(sh_runtime* handle, sh_pressure_fn pressure, void* user_data, Lock& lock);

    // Captures and launches: runtime_graphs.cpp
    Status capture_begin(sh_stream stream);
    // No graph is kept where out_graph is null.
    Status capture_end(sh_stream stream, uint64_t* out_graph);
    Status graph_enter(uint64_t graph, sh_stream stream, Lock& lock);
    Status graph_leave(uint64_t graph, sh_stream stream);
    Status graph_destroy(uint64_t graph, Lock& lock);

private:
    Runtime(std::shared_ptr<Device> device, const sh_runtime_options& options, std::mutex& mutex);

    static constexpr uint32_t kInTime = uint32_t(1) << 31;   // among the flags of a view while it is acquired: its bytes were there

    Status unknown_block(sh_block id) const;
    Status usable() const { return gate_.usable(); }
    Status note(Status status) { return gate_.note(std::move(status)); }
    uint32_t index_of(const Unit& unit) const { return registry_.index_of(unit); }
    bool is_eventful() const;

    void fill_view(const Block& block, const Unit& unit, uint32_t flags, sh_view* out) const {
        const uint32_t size = out->struct_size;
        *out = {size, (flags & ~kInTime) | view_flags_, block.id, reinterpret_cast<void*>(block.address), block.bytes, unit.serial()};
    }
    void arrive(Unit& unit);
    Status begin_bringing(Unit& unit, uint32_t* view_flags, Lock& lock);
    Status make_current(Unit& unit, bool* out_waited, Lock& lock);
    bool drop_if_stale(Unit& unit);
    Status finish_bringing(Unit& unit, sh_stream stream, uint32_t flags, uint32_t* view_flags, Lock& lock);
    Status finish_and_note(Unit& unit, sh_stream stream, uint32_t flags, uint32_t* view_flags, bool* waited, Lock& lock);
    void count_acquire(uint32_t view_flags);
    void note_wait(const Unit& unit, uint64_t began_ns, uint32_t* view_flags);
    Status place_unordered(Unit& unit, Lock& lock);
    Status bring_memory(Unit& unit, uint32_t* view_flags, Lock& lock);
    Status remove(const Obstacle& obstacle, const Unit* wanted, Lock& lock);
    Status held_by(const Unit& wanted, Unit& holder);
    void hold(Block& block, Unit& unit);
    void unhold(Block& block, Unit& unit);
    Status check_no_capture(sh_stream stream);
    Status end_view(Block& block, sh_stream stream);
    bool is_left_alone(const Block& block);
    Status leave_alone(std::span<const sh_block> ids, Lock& lock);
    Status wait_for_sources(std::span<const sh_block> ids, std::span<const uint32_t> units, Lock& lock);
    Status find_units(std::span<const sh_block> ids, std::vector<uint32_t>* out);
    void forget_units(std::span<const uint32_t> gone, Lock& lock);

    Status only_outside_capture() const;
    Status capture_acquire(sh_block id, sh_stream stream, sh_view* out);
    Status capture_release(Block& block, sh_stream stream);
    void drop_captured_views();
    bool plan_is_held() const;
    Status held_by_graphs() const;
    Graph* find_graph(uint64_t id);
    const Graph* graph_that_uses(uint32_t unit) const;
    Status clear_ring(Lock& lock);
    Status load_own(Unit& unit, Lock& lock);
    Status load_residents(const Graph& graph, sh_stream stream, Lock& lock);
    Status order_launch(sh_stream stream);
    void begin_counting_launch();
    Status count_launch();
    void learn();
    Status log_step(const sh_runtime_stats& before);
    Status leave_graph(Graph& graph, sh_stream stream);
    Status follow_launch(Unit& unit, sh_stream stream, uint32_t flags, uint32_t* view_flags, Lock& lock);
    Status wait_for_launch(sh_backend_event done, Lock& lock);
    Status wait_for_launches(Lock& lock);
    Status drop_graphs(Lock& lock);
    Status drop_graphs_if_wanted(Lock& lock);
    bool may_prefetch() const { return planned_ && !gate_.lost() && !capture_ && !entered_; }

    Status behind_closed_door(Lock& lock, const std::function<Status()>& change);
    Status replan(Lock& lock, bool press);
    Status change_plan(Lock& lock, bool press);
    std::string asked_for_by(uint32_t unit);
    Status ask_for_share(const Needs& needs, bool press, uint64_t* out_pages, Lock& lock);
    Status quiesce(Lock& lock);
    Status give_back(Lock& lock);
    Status put_into_force(const Planner::Result& result, Lock& lock);
    bool replan_due() const;
    Planner::Limits limits();
    Status flush_dirty(Lock& lock);
    void describe(const Planner::Result& result, sh_plan_info* out);

    Holding holding();
    uint64_t kept_pages();
    void tell_kept();
    void end_protection(Unit& unit, uint64_t times);
    void begin_span(telemetry::Residency how);
    void end_span(telemetry::Residency how, uint64_t bytes);
    Status vacate(Lock& lock);
    Status shrink_to(uint64_t pages, Lock& lock);
    Status wait_for_room(uint64_t wait_ns, Lock& lock);
    Status without_mutex(Lock& lock, const std::function<Status()>& work);

    const std::shared_ptr<Device> device_;
    const sh_stream thread_handle_;   // of each thread's own default stream
    const RuntimeTag tag_;
    const uint32_t max_held_;
    const uint64_t max_pages_;         // ceiling on the share
    const uint64_t unordered_pages_;   // asked for; 0: automatic
    const uint64_t share_wait_ns_;
    sh_runtime_stats stats_ = {};
    Gate gate_;

    EventPool events_;
    StreamTable streams_;
    Registry registry_;
    Ring ring_;
    Contents contents_;
    Changes changes_;
    Order order_;
    Placement placement_;
    Loader loader_;
    WriteBack write_back_;
    UnorderedCache unordered_;
    Prefetcher prefetcher_;
    ComputeMeter meter_;
    Planner planner_;
    telemetry::StepLog step_log_;

    std::unique_ptr<Capture> capture_;              // under way
    std::vector<std::unique_ptr<Graph>> graphs_;
    std::vector<std::unique_ptr<Graph>> abandoned_; // captures that came to nothing: kept until their streams capture no more
    Graph* entered_ = nullptr;                      // between enter and leave
    sh_stream entered_on_ = SH_STREAM_HOST;
    uint64_t next_graph_ = 1;
    uint32_t launch_waits_ = 0;                     // calls that wait for the end of a launch

    Planner::Result plan_;             // in force
    uint32_t view_flags_ = 0;
    bool planned_ = false;             // plan_ is in force
    bool replan_wanted_ = true;        // blocks, order or budget changed
    bool drop_graphs_wanted_ = false;  // asked for in a step: when the next one begins, if the plan has to change
    bool was_measured_ = false;        // compute times were measured once, or are being
    bool eventful_ = true;             // as is_eventful() said last: acquires must be noted
    uint32_t kept_scopes_ = 0;         // in which all that it holds is protected
    uint64_t protected_units_ = 0;     // units that are protected one by one
    uint64_t trimmed_to_ = UINT64_MAX; // pages that it wants at most until it is used again
    bool leaving_ = false;             // a guest that gives its memory back as soon as it can
    std::array<uint64_t, 3> residency_since_ns_ = {};   // for the trace, by telemetry::Residency; 0: not now
    std::mutex pressure_mutex_;        // held while the callback runs; no other is taken under it
    sh_pressure_fn pressure_ = nullptr;
    void* pressure_data_ = nullptr;
    sh_runtime* pressure_handle_ = nullptr;
    uint64_t step_began_ns_ = 0;
    sh_runtime_stats before_step_ = {};
    bool launch_counts_ = false;       // the graph was entered outside a step: its launch is one
    uint64_t launch_began_ns_ = 0;
    sh_runtime_stats before_launch_ = {};
};

}  // namespace stagehand::core
