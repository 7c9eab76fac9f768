// PackedPlanner: plans over packed weights: whether the device unpacks them, and which of them stay on the device
// packed.
#pragma once

#include <cstdint>

#include "base/status.h"
#include "core/plan/planner.h"
#include "policy/packed_or_plain.h"

namespace stagehand::core {

// Its plan is the plain one if no weights are packed.
class PackedPlanner {
public:
    explicit PackedPlanner(Registry& registry) : registry_(registry), plain_(registry) {}

    Planner& plain() { return plain_; }
    // Makes the plan for a share that is no smaller than the least. All units are unordered if the order is not known.
    Status make(const Order& order, const PlanLimits& limits, uint64_t share_pages, PlanResult* out);
    // How long the packed weights that the plan keeps take to come. They come when the plan is put into force.
    double kept_ns(const PlanLimits& limits, const PlanResult& plan);

private:
    uint64_t pages_to_unpack_in(const Order& order, const PlanLimits& limits, uint64_t share_pages);
    Status make_packed(const Order& order, const PlanLimits& limits, uint64_t share_pages, PlanResult* out);
    double slowdown_by_sources(const Order& order, const PlanLimits& limits);
    policy::PackedModel packed_model(const Order& order, const PlanLimits& limits, uint64_t pages, uint64_t compute_ns,
                                     double slowdown);
    uint64_t share_out_kept(const Order& order, uint64_t kept_pages, PlanResult* result);
    uint64_t bytes_not_brought(const PlanResult& result);
    uint64_t pages_for_kept(const policy::PackedModel& model, double bytes) const;
    double estimate_kept_part(const policy::PackedModel& model, uint64_t kept_pages) const;
    struct KeptProblem {
        policy::PackedModel model;
        uint64_t pages = 0;      // for all weights
        uint64_t most_kept = 0;  // of them, for packed weights that stay
    };
    Status try_kept(const Order& order, PlanLimits with, const KeptProblem& problem, uint64_t kept_pages,
                    PlanResult* out, uint64_t* out_needed);
    void keep_all_packed(const Order& order, const PlanLimits& limits, const KeptProblem& problem, uint64_t kept_pages,
                         PlanResult* out);
    void keep_some_packed(const Order& order, const PlanLimits& limits, const KeptProblem& problem, uint64_t kept_pages,
                          PlanResult* out);
    Status make_with_kept(const Order& order, const PlanLimits& limits, const PlanResult& streaming, uint64_t pages,
                          PlanResult* out);
    Status make_beside(const Order& order, const PlanLimits& limits, uint64_t left_pages, PlanResult* out);

    Registry& registry_;
    Planner plain_;
};

}  // namespace stagehand::core
