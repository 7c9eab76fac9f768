// Runtime: one model on a device. It hands each call of the interface to the part whose job it is.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <string>

#include <stagehand/members.h>
#include <stagehand/residency.h>
#include <stagehand/runtime.h>
#include <stagehand/streaming.h>
#include <stagehand/telemetry.h>

#include "base/status.h"
#include "core/device/arbiter.h"
#include "core/device/device.h"
#include "core/device/pausables.h"
#include "core/runtime/access.h"
#include "core/runtime/blocks.h"
#include "core/runtime/captures.h"
#include "core/runtime/clearance.h"
#include "core/runtime/graphs.h"
#include "core/runtime/pauses.h"
#include "core/runtime/plan_figures.h"
#include "core/runtime/plan_in_force.h"
#include "core/runtime/pressure.h"
#include "core/runtime/protections.h"
#include "core/runtime/readback.h"
#include "core/runtime/residency.h"
#include "core/runtime/runtime_tag.h"
#include "core/runtime/sources.h"
#include "core/runtime/step_count.h"
#include "core/runtime/steps.h"
#include "core/runtime/views.h"

namespace stagehand::core {

// The caller holds the runtime's mutex in every public method except create() and the methods of Tenant and Pausable. A
// method that may give the mutex up takes it as `lock`. The mutex belongs to the handle's slot and outlives the
// runtime.
class Runtime final : public Tenant, public Pausable {
public:
    static Status create(std::shared_ptr<Device> device, const sh_runtime_options& options, std::mutex& mutex,
                         std::shared_ptr<Runtime>* out);
    ~Runtime() override;

    Device& device() { return *share_.device; }
    const std::string& name() const { return gate_.name(); }
    // The name that all other calls use for the stream.
    sh_stream name_of_stream(sh_stream handle) const {
        return handle == thread_handle_ ? thread_stream::of_this_thread() : handle;
    }
    // Makes waiting callers give up. Waits until they have left and nothing is in flight. On an error, memory is not
    // given back.
    Status close(Lock& lock);

    // The plan is being changed, and the mutex was given up meanwhile. A new call has to wait first.
    bool changing() const { return gate_.changing(); }
    Status wait_for_change(Lock& lock);
    // Decides whether the next acquires and releases may take the short way. Called before a call gives up the mutex
    // for good.
    void look_around() noexcept;

    // Tenant: requests of the device's arbiter.
    void try_to_change() override;
    void feel_pressure(uint64_t pages) override { pressure_.tell(pages * share_.page_bytes()); }
    std::string tenant_name() const override { return gate_.title(); }

    // Pausable: a pause and a resume of the device.
    const std::string& pause_tag() const override { return pauses_.tag(); }
    Figures pause_figures() const override;
    Status release_memory() override;
    Status take_memory() override;
    void run() noexcept override;

    // The classes that do what a call asks for, where that is all that the call needs.
    Blocks& blocks() { return blocks_; }
    Sources& sources() { return sources_; }
    Steps& steps() { return steps_; }
    Residency& residency() { return residency_; }
    Graphs& graphs() { return graphs_; }
    StepCount& step_count() { return count_; }
    const PlanFigures& figures() const { return figures_; }

    // Plans and steps.
    Status plan(const sh_plan_options& options, sh_plan_info* out, Lock& lock);
    Status step_begin(const char* kind_name, Lock& lock);
    Status step_end(Lock& lock);
    Status synchronize(Lock& lock);
    Status forget(sh_stream stream);

    // Views. The first function of each pair is the short way. The caller calls the second one if the first returns
    // false.
    bool acquire_ready(sh_block id, sh_view* out) noexcept {
        return !eventful_ && !changing() && views_.take_ready(id, out);
    }
    Status acquire(sh_block id, sh_stream stream, uint32_t flags, sh_view* out, Lock& lock);
    bool release_plainly(sh_block id, sh_stream stream) noexcept {
        return !eventful_ && views_.end_plainly(id, stream);
    }
    Status release(sh_block id, sh_stream stream, Lock& lock);
    Status acquire_many(std::span<const sh_block> ids, sh_stream stream, uint32_t flags, std::span<sh_view* const> out,
                        Lock& lock);
    Status prefetch(std::span<const sh_block> ids, Lock& lock);
    Status acquire_members(sh_set set, std::span<const uint32_t> members, sh_stream stream, uint32_t flags,
                           sh_view* out_pool, uint32_t* out_slots, Lock& lock);
    Status release_members(sh_set set, std::span<const uint32_t> members, sh_stream stream, Lock& lock);
    Status prefetch_members(sh_set set, std::span<const uint32_t> members, std::span<const float> chances, Lock& lock);
    Status read(sh_block id, sh_stream stream, uint64_t offset, void* buffer, uint64_t bytes, Lock& lock);
    Status verify(sh_block id, sh_stream stream, Lock& lock);

    // `handle` is the handle that the callback gets. Waits for a callback that is running.
    Status set_pressure(sh_runtime* handle, sh_pressure_fn pressure, void* user_data, Lock& lock);

    // Captures and launches.
    Status capture_begin(sh_stream stream);
    // The graph is not kept if out_graph is null.
    Status capture_end(sh_stream stream, uint64_t* out_graph);
    Status graph_destroy(uint64_t graph, Lock& lock);

private:
    Runtime(std::shared_ptr<Device> device, const sh_runtime_options& options, std::mutex& mutex);

    bool is_eventful() const;
    template <class Work>
    Status in_a_pause(Work&& work) noexcept;

    const sh_stream thread_handle_;  // stands for each thread's own default stream
    const RuntimeTag tag_;
    BudgetShare share_;
    Gate gate_;
    const std::unique_ptr<transfer::Carrier> carrier_;
    ModelMemory memory_;
    Movers movers_;
    StepOrder step_order_;
    Pressure pressure_;
    Clearance clearance_;
    Views views_;
    Protections protections_;
    PlanInForce plan_;
    PlanFigures figures_;
    StepCount count_;
    Captures captures_;
    GraphResidents residents_;
    Graphs graphs_;
    Fetcher fetcher_;
    Access access_;
    Readback readback_;
    Sources sources_;
    Blocks blocks_;
    Residency residency_;
    Steps steps_;
    Pauses pauses_;
    // What other threads may know, as of the last call.
    struct Told {
        std::atomic<uint64_t> blocks{0}, bytes{0}, held_bytes{0}, cycles{0};
    };
    Told told_;
    bool eventful_ = true;  // the last result of is_eventful(): acquires must be noted
};

}  // namespace stagehand::core
