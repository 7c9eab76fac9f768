// Planner: states a runtime's blocks, order and share as a problem of the policy, and turns the answer into places.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include <stagehand/runtime.h>

#include "base/status.h"
#include "core/device/arbiter.h"
#include "core/memory/placement.h"
#include "core/memory/registry.h"
#include "core/plan/link_costs.h"
#include "core/plan/order.h"
#include "policy/outside.h"
#include "policy/packed_or_plain.h"
#include "policy/plan.h"

namespace stagehand::core {

class Planner {
public:
    struct Limits {
        uint32_t max_held = 1;
        uint64_t unordered_pages = 0;       // as the engine asked for; 0: automatic
        uint64_t unordered_held_pages = 0;  // the most pages that were held at once so far
        double link_bytes_per_ns = 1;       // of the device's link and those beside it
        double link_bytes_beside = 0;       // of the latter, per nanosecond; they carry large pieces only
        uint64_t copy_latency_ns = 0;
        uint64_t unordered_now = 0;       // pages that blocks outside the order have now
        double unpack_ns_per_byte = 0;    // that the device takes for a byte of a packed block; 0: the host unpacks
        uint64_t unpack_batch_bytes = 0;  // of packed chunks that come at once
        std::vector<double> kept_part;    // see find_link_costs()
        std::vector<bool> changing;       // for each unit, or for none: the engine changes it in each step
        bool keep_all = false;            // resident pages stay resident, whatever else the plan has to do
    };

    struct Result {
        std::vector<Place> places;  // for each unit
        uint64_t share_pages = 0;   // the share that the plan was made for
        uint64_t resident_pages = 0;
        uint32_t ring_pages = 0;
        uint64_t unordered_pages = 0;
        UnpackPlan unpack;
        std::vector<double> kept_part;  // for each unit, the part of its packed chunks that stay
        uint64_t least_pages = 0;       // the smallest share with which a plan exists
        uint32_t least_unit = kNone;    // the unit that determines least_pages
        uint64_t bytes_per_step = 0;
        uint64_t bound_bytes_per_step = 0;
        double step_ns = 0;
        double bound_ns = 0;
        double plan_bound_ns = 0;
        uint64_t compute_ns = 0;
        uint64_t link_bytes_per_second = 0;
        uint64_t unpack_bytes_per_second = 0;  // 0: the host unpacks
        uint64_t resident_blocks = 0, streamed_blocks = 0;
        uint64_t orders = 0;  // that the plan is for; the times and the copied bytes are means over a step of each

        uint64_t pages() const { return resident_pages + ring_pages + unordered_pages + unpack.all_pages(); }
    };

    explicit Planner(Registry& registry) : registry_(registry) {}

    // What the runtime needs of the device, without the curve, and the unit that determines the smallest share.
    Needs needs(const Order& order, const Limits& limits, uint32_t* out_unit);
    // How much shorter the step gets with more memory, for the result of needs(). Empty if the order is not known.
    std::vector<policy::CurvePoint> curve(const Order& order, const Limits& limits, const Needs& needs);
    // Makes the plan for a share that is no smaller than the least. All units are unordered if the order is not known.
    Status make(const Order& order, const Limits& limits, uint64_t share_pages, Result* out);

    // The mean length of a step of each order if a plan is in force. 0 if the plan cannot run it.
    double step_ns(const Order& order, const Limits& limits, const Result& plan);

    // How long the packed weights that the plan keeps take to come. They come when the plan is put into force.
    double kept_ns(const Limits& limits, const Result& plan);

    // The part of the last needs() that is for units outside the order.
    const policy::OutsideNeeds& outside() const { return unordered_needs_; }

    // The pages that a plan needs that keeps what is protected.
    uint64_t pages_with_kept(const Order& order, const Limits& limits);

private:
    uint64_t pages_to_unpack_in(const Order& order, const Limits& limits, uint64_t share_pages);
    // packed_planning.cpp
    Status make_packed(const Order& order, const Limits& limits, uint64_t share_pages, Result* out);
    double slowdown_by_sources(const Order& order, const Limits& limits);
    policy::PackedModel packed_model(const Order& order, const Limits& limits, uint64_t pages, uint64_t compute_ns,
                                     double slowdown);
    uint64_t share_out_kept(const Order& order, uint64_t kept_pages, Result* result);
    uint64_t bytes_not_brought(const Result& result);
    uint64_t pages_for_kept(const policy::PackedModel& model, double bytes) const;
    double estimate_kept_part(const policy::PackedModel& model, uint64_t kept_pages) const;
    struct KeptProblem {
        policy::PackedModel model;
        uint64_t pages = 0;      // for all weights
        uint64_t most_kept = 0;  // of them, for packed weights that stay
    };
    Status try_kept(const Order& order, Limits with, const KeptProblem& problem, uint64_t kept_pages, Result* out,
                    uint64_t* out_needed);
    void keep_all_packed(const Order& order, const Limits& limits, const KeptProblem& problem, uint64_t kept_pages,
                         Result* out);
    void keep_some_packed(const Order& order, const Limits& limits, const KeptProblem& problem, uint64_t kept_pages,
                          Result* out);
    Status make_with_kept(const Order& order, const Limits& limits, const Result& streaming, uint64_t pages,
                          Result* out);

    Status make_within(const Order& order, const Limits& limits, uint64_t share_pages, Result* out);
    Status make_beside(const Order& order, const Limits& limits, uint64_t left_pages, Result* out);
    uint64_t share_of_unordered(const Order& order, const Limits& limits, const Needs& needed, uint64_t share_pages,
                                bool keeps);
    void state_problem(const Order& order, const Limits& limits);
    std::vector<policy::Use> trace_of(const Sequence& sequence, const Limits& limits) const;
    void state_bounds(const Order& order, Result* result) const;
    static LinkSpeeds speeds_of(const Limits& limits);
    void state_units(const Limits& limits);
    void state_unordered(const Order& order, const Limits& limits);
    uint64_t sum_of_floors() const;
    uint64_t state_beside_floors(const Order& order, const Limits& limits);
    void floor_what_is_there(const Order& order, const Limits& limits);
    void set_floors(const Order& order, const Limits& limits, uint64_t pages, uint64_t least);

    Registry& registry_;
    std::vector<policy::Unit> units_;   // the policy's units, kept from plan to plan
    std::vector<double> source_ns_;     // that the source of each unit takes for a byte
    std::vector<LinkCost> link_costs_;  // of each unit
    double least_cost_ = 1;             // of them
    std::vector<policy::Gap> gaps_;     // of units_, if pages stay resident beside the plan
    std::vector<policy::Use> trace_;
    policy::Problem problem_;
    uint32_t steps_ = 1;            // that trace_ stands for
    uint64_t unordered_total_ = 0;  // pages of all unordered units
    uint64_t unordered_least_ = 0;  // pages without which one of the unordered units cannot be held
    uint64_t unordered_good_ = 0;   // pages that unordered units get when there is enough memory
    uint64_t unordered_kept_ = 0;   // present pages of protected unordered units
    policy::OutsideNeeds unordered_needs_;
    std::vector<uint32_t> floors_;  // for each unit, pages that are resident in any plan
};

}  // namespace stagehand::core
