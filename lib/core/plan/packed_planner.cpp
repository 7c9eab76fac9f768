#include "core/plan/packed_planner.h"

#include <algorithm>
#include <cmath>

#include "core/device/unpack_memory.h"
#include "core/memory/kept_weights.h"
#include "core/plan/link_costs.h"
#include "core/plan/source_speeds.h"
#include "transfer/unpack/batches.h"

namespace stagehand::core {
namespace {

constexpr int kMostAttempts = 5;       // to find how many pages the packed weights need
constexpr double kAllStay = 0.9;       // of the chunks: then all of them are to stay
constexpr double kLeastSaved = 0.1;    // by packing, so that the next attempt is not far off
constexpr double kAsEstimated = 1.05;  // a step beside the estimate of the policy
constexpr double kWorthIt = 0.99;      // of the step of a plan that keeps no packed weights

// The contents of a unit that are packed, and what they are packed to.
struct PackedBytes {
    double contents = 0, packed = 0;
};

PackedBytes packed_bytes_of(Registry& registry, const Unit& unit) {
    PackedBytes sum;
    for (const Block& block : registry.blocks_of(unit)) {
        if (!block.id) continue;
        for (const transfer::Segment& segment : block.detail->segments) {
            if (!segment.packed()) continue;
            sum.contents += static_cast<double>(segment.bytes);
            sum.packed += static_cast<double>(segment.bytes) * transfer::packed_part(segment.source);
        }
    }
    return sum;
}

}  // namespace

// Only if the model does not fit, and if packed tensors cost less than plain ones.
uint64_t PackedPlanner::pages_to_unpack_in(const Order& order, const PlanLimits& limits, uint64_t share_pages) {
    if (!(limits.unpack_ns_per_byte > 0)) return 0;
    uint32_t unit = kNone;
    if (plain_.needs(order, limits, &unit).wanted_pages <= share_pages) return 0;
    std::vector<LinkCost> costs;
    find_link_costs(registry_, limits.speeds(), {}, &costs);
    const bool cheaper = std::ranges::any_of(costs, [](const LinkCost& cost) { return cost.link < 1; });
    return cheaper ? UnpackMemory::pages_for(share_pages, registry_.page_bytes()) : 0;
}

// How many times longer the weights of a step take than the link alone would, where workers read sources more slowly
// than the link brings their bytes.
double PackedPlanner::slowdown_by_sources(const Order& order, const PlanLimits& limits) {
    const auto units = registry_.units();
    std::vector<double> source_ns;
    std::vector<LinkCost> costs;
    find_source_ns_per_byte(units, &source_ns);
    find_link_costs(registry_, limits.speeds(), {}, &costs);
    double on_link = 0, brought = 0;
    for (uint32_t i = 0; i < units.size(); i++) {
        if (!units[i].live || !order.contains(i)) continue;
        const LinkCost& cost = costs[i];
        const double bytes = static_cast<double>(units[i].bytes);
        on_link += bytes * cost.link;
        brought += bytes * std::max(cost.link, cost.by_workers * source_ns[i] * limits.link_bytes_per_ns);
    }
    return on_link > 0 ? brought / on_link : 1;
}

policy::PackedModel PackedPlanner::packed_model(const Order& order, const PlanLimits& limits, uint64_t pages,
                                                uint64_t compute_ns, double slowdown) {
    policy::PackedModel model;
    const auto units = registry_.units();
    for (uint32_t i = 0; i < units.size(); i++) {
        if (!order.contains(i)) continue;
        const PackedBytes bytes = packed_bytes_of(registry_, units[i]);
        model.bytes += static_cast<double>(units[i].bytes);
        model.packable_bytes += bytes.contents;
        model.packed_bytes += bytes.packed;
    }
    model.memory_bytes = static_cast<double>(pages * registry_.page_bytes());
    model.compute_ns = static_cast<double>(compute_ns);
    model.link_bytes_per_ns = limits.link_bytes_per_ns / slowdown;
    model.unpack_ns_per_byte = limits.unpack_ns_per_byte;
    return model;
}

// Gives the pages to the units that stream, each the same part of its chunks. Returns the pages that all of their
// chunks would take.
uint64_t PackedPlanner::share_out_kept(const Order& order, uint64_t kept_pages, PlanResult* result) {
    const auto units = registry_.units();
    const uint64_t page = registry_.page_bytes(), room = kept_pages * page;
    std::vector<KeptBytes> bytes(units.size());
    uint64_t all = 0;
    for (uint32_t i = 0; i < units.size(); i++) {
        if (!order.contains(i) || !result->places[i].ring_pages) continue;
        find_kept_bytes(registry_, units[i], result->places[i].own * page, &bytes[i]);
        all += bytes[i].back();
    }
    result->unpack.kept_pages = kept_pages;
    result->unpack.kept.assign(units.size(), 0);
    result->kept_part.assign(units.size(), 0);
    const double part = all > room ? static_cast<double>(room) / static_cast<double>(all) : 1;
    uint64_t given = 0;
    double wanted = 0;
    for (uint32_t i = 0; i < units.size(); i++) {
        if (bytes[i].empty() || !bytes[i].back()) continue;
        wanted += part * static_cast<double>(bytes[i].back());
        const uint64_t most = std::min(room, static_cast<uint64_t>(std::ceil(wanted))) - given;
        const auto past = std::upper_bound(bytes[i].begin(), bytes[i].end(), most);
        const auto k = past - bytes[i].begin() - 1;
        result->unpack.kept[i] = static_cast<uint8_t>(k);
        given += bytes[i][k];
        result->kept_part[i] = static_cast<double>(bytes[i][k]) / static_cast<double>(bytes[i].back());
    }
    while (!result->unpack.kept.empty() && !result->unpack.kept.back()) result->unpack.kept.pop_back();
    return (all + page - 1) / page;
}

// The bytes of a step that are not brought because their chunks stay.
uint64_t PackedPlanner::bytes_not_brought(const PlanResult& result) {
    double bytes = 0, streamed = 0;
    const auto units = registry_.units();
    for (size_t i = 0; i < result.places.size(); i++) {
        if (!result.places[i].ring_pages) continue;
        const double of_unit = result.places[i].ring_pages;
        streamed += of_unit;
        if (result.kept_part[i] > 0)
            bytes += of_unit * result.kept_part[i] *
                     std::min(1.0, packed_bytes_of(registry_, units[i]).contents /
                                       static_cast<double>(registry_.link_bytes(static_cast<uint32_t>(i))));
    }
    return streamed > 0 ? static_cast<uint64_t>(static_cast<double>(result.bytes_per_step) * bytes / streamed) : 0;
}

double PackedPlanner::kept_ns(const PlanLimits& limits, const PlanResult& plan) {
    const auto units = registry_.units();
    std::vector<double> source_ns;
    find_source_ns_per_byte(units, &source_ns);
    double ns = 0;
    for (uint32_t i = 0; i < units.size() && i < plan.kept_part.size(); i++) {
        if (!units[i].live || !units[i].pages || !(plan.kept_part[i] > 0)) continue;
        const PackedBytes bytes = packed_bytes_of(registry_, units[i]);
        const double streamed = static_cast<double>(plan.places[i].ring_pages) / units[i].pages;
        ns += plan.kept_part[i] * streamed *
              std::max(bytes.packed / limits.link_bytes_per_ns, bytes.contents * source_ns[i]);
    }
    return ns;
}

// The pages for so many packed weights, counted unpacked.
uint64_t PackedPlanner::pages_for_kept(const policy::PackedModel& model, double bytes) const {
    const double packed = bytes * model.packed_bytes / std::max(1.0, model.packable_bytes);
    return static_cast<uint64_t>(std::ceil(packed / static_cast<double>(registry_.page_bytes())));
}

// The part of the streamed chunks that this many pages hold, if the rest of the memory is for plain weights.
double PackedPlanner::estimate_kept_part(const policy::PackedModel& model, uint64_t kept_pages) const {
    const double kept = static_cast<double>(kept_pages * registry_.page_bytes());
    const double plain = std::max(0.0, model.memory_bytes - kept);
    const double streamed = model.packed_bytes * std::max(0.0, 1 - plain / model.bytes);
    return streamed > kept ? kept / streamed : 1;
}

// Makes a plan for what memory for packed weights leaves. Blocks outside the order may need more than that.
Status PackedPlanner::make_beside(const Order& order, const PlanLimits& limits, uint64_t left_pages, PlanResult* out) {
    SH_TRY(plain_.make(order, limits, left_pages, out));
    return out->least_pages <= left_pages ? Status() : Status(SH_ERROR_BUDGET);
}

// Makes a plan that keeps packed weights in so many of the pages, and puts it in place of a longer one.
// `out_needed`: the pages that all chunks of its streamed parts would take.
Status PackedPlanner::try_kept(const Order& order, PlanLimits with, const KeptProblem& problem, uint64_t kept_pages,
                               PlanResult* out, uint64_t* out_needed) {
    with.kept_part.assign(registry_.units().size(), estimate_kept_part(problem.model, kept_pages));
    PlanResult result;
    SH_TRY(make_beside(order, with, problem.pages - kept_pages, &result));
    *out_needed = share_out_kept(order, kept_pages, &result);
    result.step_ns = plain_.step_ns(order, with, result);
    result.bytes_per_step -= bytes_not_brought(result);
    if (!out->unpack.kept_pages || result.step_ns < out->step_ns) *out = std::move(result);
    return Status();
}

// All packed chunks are to stay. Only a plan tells how many those are: pages that are missing come from plain weights,
// which then are packed ones too, and the other way round.
void PackedPlanner::keep_all_packed(const Order& order, const PlanLimits& limits, const KeptProblem& problem,
                                    uint64_t kept_pages, PlanResult* out) {
    const policy::PackedModel& model = problem.model;
    const double saved = std::max(kLeastSaved, 1 - model.packed_bytes / model.packable_bytes);  // by packing a byte
    const auto most = static_cast<uint64_t>(model.packed_bytes / static_cast<double>(registry_.page_bytes())) + 1;
    uint64_t before = 0, needed = 0;
    for (int attempt = 0; attempt < kMostAttempts && kept_pages && kept_pages != before; attempt++) {
        if (!try_kept(order, limits, problem, kept_pages, out, &needed).ok()) return;
        before = kept_pages;
        const double missing = static_cast<double>(needed) - static_cast<double>(kept_pages);
        const double next = static_cast<double>(kept_pages) + missing / saved;
        kept_pages = std::min({most, problem.most_kept, static_cast<uint64_t>(std::max(0.0, next))});
    }
}

// Some of the packed chunks are to stay, in all memory that plans can do without. More memory for the ring, or for the
// largest units, may be worth more: looks for the best amount near the least one.
void PackedPlanner::keep_some_packed(const Order& order, const PlanLimits& limits, const KeptProblem& problem,
                                     uint64_t kept_pages, PlanResult* out) {
    const uint64_t step = std::max<uint64_t>(1, (problem.pages - problem.most_kept) / 4);
    uint64_t best = kept_pages, needed = 0;
    const auto attempt = [&](uint64_t less) {
        if (less >= kept_pages) return;
        const double before = out->step_ns;
        const bool made = try_kept(order, limits, problem, kept_pages - less, out, &needed).ok();
        if (made && (!less || out->step_ns < before)) best = kept_pages - less;
    };
    attempt(0);
    attempt(2 * step);
    const uint64_t less = kept_pages - best;
    attempt(less + step);
    if (less) attempt(less - step);
}

// A plan that keeps packed weights on the device, in a part of the pages for weights.
Status PackedPlanner::make_with_kept(const Order& order, const PlanLimits& limits, const PlanResult& streaming,
                                     uint64_t pages, PlanResult* out) {
    const uint64_t beside = streaming.ring_pages + streaming.unordered_pages;
    // Protected blocks come first.
    uint64_t least = streaming.least_pages;
    for (const Unit& unit : registry_.units())
        if (unit.live && unit.protections) least += unit.pages;
    least = std::max(least, plain_.pages_with_kept(order, limits));
    if (pages <= std::max(beside, least)) return Status(SH_ERROR_BUDGET);
    const KeptProblem problem = {
        packed_model(order, limits, pages - beside, streaming.compute_ns, slowdown_by_sources(order, limits)), pages,
        pages - least};
    const policy::KeptWeights best = policy::choose_kept_weights(problem.model, streaming.step_ns);
    const uint64_t kept_pages = std::min(pages_for_kept(problem.model, best.bytes), problem.most_kept);
    if (!kept_pages) return Status(SH_ERROR_BUDGET);
    const bool all_stay = estimate_kept_part(problem.model, kept_pages) > kAllStay;
    if (!all_stay) keep_some_packed(order, limits, problem, kept_pages, out);
    // Units that wait for their sources one by one take longer than the estimate, and nothing waits if nothing comes.
    if (all_stay || out->step_ns > kAsEstimated * best.step_ns) {
        const double most = policy::most_kept_bytes(problem.model);
        const uint64_t all = std::min(pages_for_kept(problem.model, most), problem.most_kept);
        keep_all_packed(order, limits, problem, all_stay ? kept_pages : all, out);
    }
    return out->unpack.kept_pages ? Status() : Status(SH_ERROR_BUDGET);
}

Status PackedPlanner::make(const Order& order, const PlanLimits& limits, uint64_t share_pages, PlanResult* out) {
    const Status status = make_packed(order, limits, share_pages, out);
    const double ns_per_byte = limits.unpack_ns_per_byte;
    out->unpack_bytes_per_second = ns_per_byte > 0 ? static_cast<uint64_t>(1e9 / ns_per_byte) : 0;
    return status;
}

Status PackedPlanner::make_packed(const Order& order, const PlanLimits& limits, uint64_t share_pages, PlanResult* out) {
    const uint64_t pages = pages_to_unpack_in(order, limits, share_pages);
    Status status = Status(SH_ERROR_BUDGET);
    if (pages) status = make_beside(order, limits, share_pages - pages, out);
    if (status.code() == SH_ERROR_BUDGET) {
        PlanLimits on_host = limits;
        on_host.unpack_ns_per_byte = 0;
        *out = {};
        return plain_.make(order, on_host, share_pages, out);
    }
    out->unpack.pages = pages;
    out->share_pages = share_pages;
    if (!status.ok() || !order.known() || !out->compute_ns || !out->bytes_per_step) return status;
    PlanResult kept;
    if (make_with_kept(order, limits, *out, share_pages - pages, &kept).ok() &&
        kept.step_ns < kWorthIt * out->step_ns) {
        kept.unpack.pages = pages;
        kept.share_pages = share_pages;
        *out = std::move(kept);
    }
    // A bound for any choice of what stays, also of the weights with slow sources.
    const policy::PackedModel model = packed_model(order, limits, share_pages, out->compute_ns, 1);
    out->bound_bytes_per_step =
        std::min(out->bound_bytes_per_step, static_cast<uint64_t>(policy::least_packed_bytes(model)));
    out->bound_ns = out->plan_bound_ns = std::min(out->bound_ns, policy::least_packed_step_ns(model));
    return status;
}

}  // namespace stagehand::core
