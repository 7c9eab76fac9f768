// BudgetClaim: what a runtime needs of its device, what it asks the device's arbiter for, and what it tells the
// arbiter.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include <stagehand/runtime.h>

#include "base/status.h"
#include "core/plan/planner.h"
#include "core/runtime/budget_share.h"
#include "core/runtime/protections.h"
#include "core/runtime/speed_watch.h"
#include "core/runtime/step_order.h"

namespace stagehand::core {

// The caller holds the runtime's mutex in all methods.
class BudgetClaim {
public:
    // `plan` is the plan in force.
    BudgetClaim(Gate& gate, BudgetShare& share, ModelMemory& memory, Movers& movers, StepOrder& step_order,
                const Protections& protections, const SpeedWatch& speeds, Planner& planner, const PlanResult& plan,
                const sh_runtime_options& options);

    uint32_t max_held() const { return max_held_; }
    // What a plan has to keep to, with the units that the engine changes and the speed of the link.
    Status limits(std::vector<bool> changing, PlanLimits* out) const;
    Needs needs();
    // What to ask the arbiter for. `out_unit` gets the unit that needs most.
    Needs needs_with_curve(const PlanLimits& limits, uint32_t* out_unit);
    // The mutex is given up.
    Status ask_for_share(const Needs& needs, bool press, uint64_t* out_pages, Lock& lock);
    // trim_to() limits what the runtime asks for until it is used again.
    void trim_to(uint64_t pages) { trimmed_to_ = pages; }
    bool is_trimmed() const { return trimmed_to_ != UINT64_MAX; }

    // Tells the arbiter what the runtime holds: so many pages, or what it has now.
    void settle(std::optional<uint64_t> pages = std::nullopt);
    // The share was asked for as the places need it. From now on, the runtime may be given as much as it can use. If
    // this fails, it is given no more until it plans anew.
    void renew(std::vector<bool> changing) noexcept;
    // Tells the arbiter how many of the pages that the runtime holds now are protected.
    void tell_kept();
    // For when fewer pages are protected than before. If host memory is too short to compute the number, the
    // arbiter keeps the old number until a plan is settled.
    void tell_less_kept() noexcept;

private:
    PlanLimits limits() const;
    Holding holding() noexcept;
    std::vector<policy::Part> parts_to_give_up() const;
    uint64_t kept_pages();

    Gate& gate_;
    BudgetShare& share_;
    ModelMemory& memory_;
    Movers& movers_;
    StepOrder& step_order_;
    const Protections& protections_;
    const SpeedWatch& speeds_;
    Planner& planner_;
    const PlanResult& plan_;
    const uint32_t max_held_;
    const uint64_t unordered_pages_;  // as the engine asked for; 0: automatic
    const uint64_t share_wait_ns_;
    uint64_t trimmed_to_ = UINT64_MAX;
};

}  // namespace stagehand::core
