// Residency: how much a runtime keeps on the device, for itself and for the sake of other runtimes.
#pragma once

#include <cstdint>
#include <functional>
#include <span>

#include <stagehand/residency.h>

#include "base/status.h"
#include "core/runtime/budget_share.h"
#include "core/runtime/graphs.h"
#include "core/runtime/plan_in_force.h"
#include "core/runtime/protections.h"
#include "core/runtime/residency_spans.h"
#include "core/runtime/step_order.h"
#include "policy/division.h"

namespace stagehand::core {

// The caller holds the runtime's mutex in all methods.
class Residency {
public:
    Residency(Gate& gate, BudgetShare& share, ModelMemory& memory, StepOrder& step_order, Protections& protections,
              PlanInForce& plan, const Graphs& graphs)
        : gate_(gate),
          share_(share),
          memory_(memory),
          step_order_(step_order),
          protections_(protections),
          plan_(plan),
          graphs_(graphs),
          spans_(gate, memory) {}

    Status protect(std::span<const sh_block> ids);
    // Takes back one protection from each block that still exists.
    void unprotect(std::span<const sh_block> ids);
    void keep_begin();
    void keep_end();
    // `out_number`: which reservation this is. Only the end of the last one has an effect.
    Status reserve(uint64_t bytes, policy::Priority priority, Lock& lock, uint64_t* out_number);
    void release_reservation(uint64_t number);
    Status guest_begin(const sh_guest_options& options, Lock& lock);
    Status guest_end(Lock& lock);
    Status trim(uint64_t keep_bytes, uint64_t* out_bytes, Lock& lock);

    bool leaving() const { return leaving_; }  // the runtime was a guest, and gives its memory back as soon as it can
    // Gives the memory back, if that had to wait for the last view or for the end of the step.
    Status leave_if_due(Lock& lock);
    // Changes the plan to the share that the runtime has now. Called for the sake of other runtimes, while nobody uses
    // this one.
    void take_share(Lock& lock);
    // Ends the spans that the trace records.
    void end_spans();

private:
    Status shrink_to(uint64_t pages, Lock& lock);
    void try_to_make_room() noexcept;
    Status wait_for_room(uint64_t wait_ns, Lock& lock);
    Status without_mutex(Lock& lock, const std::function<Status()>& work);

    Gate& gate_;
    BudgetShare& share_;
    ModelMemory& memory_;
    StepOrder& step_order_;
    Protections& protections_;
    PlanInForce& plan_;
    const Graphs& graphs_;
    ResidencySpans spans_;
    bool leaving_ = false;
};

}  // namespace stagehand::core
