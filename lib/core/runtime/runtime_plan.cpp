// The order, the share of the budget, and the plan in force.
#include <algorithm>

#include "base/log.h"
#include "base/size_text.h"
#include "base/unlocked.h"
#include "core/runtime/patience.h"
#include "core/runtime/runtime.h"
#include "policy/budget.h"
#include "telemetry/trace.h"

namespace stagehand::core {
namespace {

constexpr int kPlanAttempts = 3;

}  // namespace

Status Runtime::set_schedule(std::span<const sh_use* const> uses) {
    SH_TRY(usable());
    std::vector<Order::Entry> entries;
    for (size_t i = 0; i < uses.size(); i++) {
        const Block* block = registry_.find(uses[i]->block);
        if (!block) return unknown_block(uses[i]->block);
        if (registry_.unit(block->unit).unordered)
            return Status(SH_ERROR_INVALID_ARGUMENT, "use " + std::to_string(i) + ": " + registry_.name_of(*block) + " is SH_BLOCK_UNORDERED");
        // Neighbours of one unit are one use of it.
        if (entries.empty() || entries.back().unit != block->unit) entries.push_back({block->unit, 0, 0});
        entries.back().compute_ns += uses[i]->compute_ns;
        entries.back().uses++;
    }
    const bool same = entries.size() == order_.size() && order_.given() &&
                      std::equal(entries.begin(), entries.end(), order_.entries().begin(),
                                 [](const auto& a, const auto& b) { return a.unit == b.unit && a.uses == b.uses && a.compute_ns == b.compute_ns; });
    if (same) return Status();
    const bool given = !entries.empty();
    order_.set(std::move(entries), registry_.units().size(), given);
    prefetcher_.renew();
    replan_wanted_ = true;
    return Status();
}

Planner::Limits Runtime::limits() {
    Planner::Limits limits;
    limits.max_held = max_held_;
    limits.unordered_pages = unordered_pages_;
    limits.unordered_held_pages = unordered_.held_peak();
    limits.unordered_now = unordered_.capacity();
    limits.keep_all = kept_scopes_ > 0;
    limits.copy_latency_ns = device_->backend().info().copy_latency_ns;
    return limits;
}

// What the arbiter has to know of the plan in force.
Holding Runtime::holding() {
    Holding holding;
    holding.pages = std::max(plan_.resident_pages + plan_.ring_pages + plan_.unordered_pages, placement_.pages());
    holding.kept_pages = kept_pages();
    if (kept_scopes_ || !order_.known()) return holding;
    std::vector<bool> seen(registry_.units().size());
    const double a_use_ns = plan_.step_ns / static_cast<double>(order_.size());
    for (uint64_t j = 0; j < order_.size(); j++) {
        const uint32_t index = order_.entries()[j].unit;
        const Unit& unit = registry_.unit(index);
        if (seen[index] || unit.protections || unit.memory != Memory::planned || unit.own.empty()) continue;
        seen[index] = true;
        holding.parts.push_back({static_cast<uint64_t>(a_use_ns * static_cast<double>(j)), unit.own.size()});
    }
    if (plan_.unordered_pages) holding.parts.push_back({static_cast<uint64_t>(plan_.step_ns), plan_.unordered_pages});
    return holding;
}

bool Runtime::replan_due() const { return replan_wanted_ || !planned_ || meter_.measured() || device_->arbiter().wants_change(*this); }

// Everything that was begun ends, so that mappings may change. Waits on the host.
Status Runtime::quiesce(Lock& lock) {
    loader_.drain(lock);
    Status status = streams_.synchronize_all();
    const bool used = !status.ok();   // by a stream that could not be waited for
    if (Status copied = loader_.synchronize(); status.ok()) status = copied;
    write_back_.drain(lock);
    if (Status copied = write_back_.synchronize(); status.ok()) status = copied;
    for (Unit& unit : registry_.units()) {
        Status failure;   // contents that failed are dropped, and loaded anew by whoever needs them
        loader_.settle(unit, &failure);
        if (!used) contents_.forget_uses(unit);
    }
    return status;
}

Status Runtime::flush_dirty(Lock& lock) {
    std::vector<uint32_t> blocks;
    for (const Block& block : registry_.blocks())
        if (block.id && (block.flags & SH_BLOCK_MUTABLE)) blocks.push_back(registry_.index_of(block));
    return write_back_.flush(blocks, lock);
}

Status Runtime::put_into_force(const Planner::Result& result, Lock& lock) {
    // What is planned from now on keeps the pages that it has; the cache gives up the rest before anything grows.
    std::vector<uint32_t> handed_over;
    for (uint32_t i = 0; i < registry_.units().size(); i++)
        if (registry_.unit(i).memory == Memory::unordered && order_.contains(i)) handed_over.push_back(i);
    for (const uint32_t index : handed_over) unordered_.hand_over(registry_.unit(index));
    const uint64_t capacity_before = unordered_.capacity();
    const bool grows = result.unordered_pages > capacity_before;
    if (!grows) SH_TRY(unordered_.resize(result.unordered_pages, lock));
    if (Status status = placement_.apply(result.places, result.ring_pages); !status.ok()) {
        if (status.code() != SH_ERROR_BUDGET) return status;
        // Refused, with nothing changed: then neither do who has which pages, and how many the cache may have.
        for (const uint32_t index : handed_over) unordered_.take_back(registry_.unit(index));
        (void)unordered_.resize(capacity_before, lock).ok();   // no less than now: nothing is given up for it
        return status;
    }
    return grows ? unordered_.resize(result.unordered_pages, lock) : Status();
}

// The mutex is given up on the way, so the door is closed meanwhile: who comes from outside waits in wait_for_change(), who is
// inside and has not begun to bring a unit waits before it does. The caller brings none.
Status Runtime::replan(Lock& lock, bool press) {
    return behind_closed_door(lock, [&] {
        Status status = change_plan(lock, press);
        // The budget was lowered meanwhile: what was granted before is not there any more.
        for (int again = 0; again < kPlanAttempts && status.code() == SH_ERROR_OUT_OF_DEVICE_MEMORY; again++) status = change_plan(lock, press);
        return status.code() == SH_ERROR_OUT_OF_DEVICE_MEMORY && planned_ ? Status(SH_ERROR_BUDGET, status.text()) : status;
    });
}

Status Runtime::behind_closed_door(Lock& lock, const std::function<Status()>& change) {
    const Gate::Inside inside(gate_);
    if (gate_.changing()) {
        gate_.wait(lock, [&] { return !gate_.changing(); });
        return usable();
    }
    const Gate::ClosedDoor door(gate_);
    look_around();
    gate_.wait(lock, [&] { return gate_.bringings() == 0; });
    SH_TRY(usable());
    return gate_.views() == 0 ? change() : Status();
}

Status Runtime::wait_for_change(Lock& lock) {
    const Gate::Inside inside(gate_);
    gate_.wait(lock, [&] { return !gate_.changing(); });
    return usable();
}

// Nobody tells when a step of another runtime has ended: it is asked anew, less and less often.
Status Runtime::ask_for_share(const Needs& needs, bool press, uint64_t* out_pages, Lock& lock) {
    Patience patience(press ? share_wait_ns_ : 0);
    for (;;) {
        const Status status = unlocked(lock, [&] {   // others may be asked to give back, and each of them needs its own mutex for that
            device_->notice_free_memory(true);
            return device_->arbiter().request(*this, needs, press, out_pages);
        });
        SH_TRY(usable());
        if (status.code() != SH_ERROR_BUSY || patience.is_over()) return status;
        patience.pause(gate_.changed(), lock, [&] { return gate_.closing(); });
    }
}

// Who asks for the most of the smallest budget. Where blocks outside the order do, their largest has to fit, or all that is said to.
std::string Runtime::asked_for_by(uint32_t unit) {
    if (unit == kNone) return "";
    const Unit& largest = registry_.unit(unit);
    const std::string block = registry_.name_of(largest) + " of " + exact_size_text(largest.bytes);
    if (order_.contains(unit)) return ", asked for by " + block;
    const uint32_t at_once = order_.known() ? 1 : max_held_;
    if (unordered_pages_ > at_once * uint64_t(largest.pages))
        return ", asked for by its unordered_bytes, " + exact_size_text(unordered_pages_ * device_->page_bytes()) + " in whole pages";
    return ", asked for by " + block + (at_once > 1 ? ", of which max_held, " + std::to_string(at_once) + ", fit at once until the order is known" : "");
}

Status Runtime::change_plan(Lock& lock, bool press) {
    const uint64_t began = device_->backend().now_ns();
    Planner::Limits with = limits();
    SH_TRY(device_->link(&with.link_bytes_per_ns));   // also before the order is known: later there may be no page to measure with
    const bool measured = meter_.measured() && order_.known();
    if (measured) {
        auto entries = order_.entries();
        const bool any = meter_.read(&entries);
        meter_.stop();
        if (any) order_.set(std::move(entries), registry_.units().size(), order_.given());
    }
    uint32_t asks = kNone;
    Needs needs = planner_.needs(order_, with, &asks);
    needs.curve = planner_.curve(order_, with, needs);
    needs.wanted_pages = std::max(needs.least_pages, std::min({needs.wanted_pages, max_pages_, trimmed_to_}));
    uint64_t share = 0;
    Status status;
    const bool beyond_own_ceiling = needs.least_pages > max_pages_;
    if (beyond_own_ceiling) status = Status(SH_ERROR_BUDGET);
    else status = ask_for_share(needs, press, &share, lock);
    if (status.code() == SH_ERROR_BUSY) return Status(SH_ERROR_BUSY, tenant_name() + ": " + status.text());
    if (status.code() == SH_ERROR_BUDGET) {
        const uint64_t page = device_->page_bytes();
        const std::string smallest = " is too small: the smallest that works is " + exact_size_text(needs.least_pages * page) + asked_for_by(asks);
        if (beyond_own_ceiling)
            return Status(SH_ERROR_BUDGET, tenant_name() + ": its max_bytes, " + exact_size_text(max_pages_ * page) + " in whole pages," + smallest);
        const char* const of = needs.least_pages > device_->arbiter().total_pages() ? "" : " that is left to it";
        return Status(SH_ERROR_BUDGET, tenant_name() + ": the budget" + of + smallest + " (" + status.text() + ")");
    }
    SH_TRY(status);
    if (planned_ && !replan_wanted_ && !measured && share == plan_.share_pages) return Status();   // what others hold did not come free
    Planner::Result result;
    const uint64_t held_before = placement_.pages();
    status = planner_.make(order_, with, share, &result);
    if (status.ok()) status = flush_dirty(lock);
    if (status.ok()) status = quiesce(lock);
    if (status.ok()) status = put_into_force(result, lock);
    if (status.code() == SH_ERROR_BUDGET && planned_) {   // what there is stays in force
        Holding held = holding();
        held.pages = std::max(held.pages, std::min(share, plan_.share_pages));
        device_->arbiter().settle(*this, std::move(held));
        return Status(SH_ERROR_OUT_OF_DEVICE_MEMORY, status.text());
    }
    planned_ = status.ok();
    if (!status.ok()) {
        plan_.resident_pages = plan_.ring_pages = plan_.unordered_pages = 0;
        device_->arbiter().settle(*this, holding());
        return note(status);
    }
    if (share < plan_.share_pages && placement_.pages() < held_before)
        stats_.given_up_bytes += (held_before - placement_.pages()) * device_->page_bytes();
    plan_ = std::move(result);
    Holding held = holding();
    held.pages = share;
    device_->arbiter().settle(*this, std::move(held));
    replan_wanted_ = trimmed_to_ != UINT64_MAX;   // then the next step takes its share again
    stats_.plans++;
    prefetcher_.renew();
    const auto& entries = order_.entries();
    const bool times_missing = std::all_of(entries.begin(), entries.end(), [](const Order::Entry& entry) { return entry.compute_ns == 0; });
    if (order_.known() && times_missing && !was_measured_) {
        meter_.start();
        was_measured_ = true;
    }
    telemetry::trace_plan(gate_.name().c_str(), began, device_->backend().now_ns());
    telemetry::trace_memory(gate_.name().c_str(), device_->backend().now_ns(), placement_.pages() * device_->page_bytes());
    const auto size = [&](uint64_t pages) { return size_text(pages * device_->page_bytes()); };
    log_line(SH_LOG_INFO, "%s: plan: %s resident, a ring of %s, %s for blocks outside the order", gate_.name().c_str(), size(plan_.resident_pages).c_str(),
             size(plan_.ring_pages).c_str(), size(plan_.unordered_pages).c_str());
    return Status();
}

void Runtime::try_to_change() {
    Lock lock(gate_.mutex());   // nobody who presses holds a runtime's mutex
    const std::unique_ptr<Runtime, void (*)(Runtime*)> last(this, [](Runtime* runtime) { runtime->look_around(); });
    if (!gate_.is_idle() || plan_is_held()) return;
    Status status = leaving_ ? leave_if_due(lock) : planned_ ? replan(lock, false) : Status();
    // It may need more by now than it may have: then it gives its memory back, rather than hold what is others'.
    const Arbiter::Standing standing = device_->arbiter().standing(*this);
    if (standing.granted > standing.share && (!planned_ || status.code() == SH_ERROR_BUDGET) && gate_.is_idle() && !plan_is_held()) status = shrink_to(0, lock);
    if (!status.ok()) log_line(SH_LOG_WARNING, "%s: changing its share: %s", gate_.name().c_str(), status.text());
}

void Runtime::describe(const Planner::Result& result, sh_plan_info* out) {
    const uint32_t size = out->struct_size;
    const uint64_t page = device_->page_bytes();
    *out = {};
    out->struct_size = size;
    out->max_held = max_held_;
    out->model_bytes = registry_.model_bytes();
    out->budget_bytes = result.share_pages * page;
    out->resident_bytes = result.resident_pages * page;
    out->ring_bytes = result.ring_pages * page;
    out->unordered_bytes = result.unordered_pages * page;
    out->smallest_budget_bytes = result.least_pages * page;
    if (result.least_unit != kNone && registry_.unit(result.least_unit).live)
        out->smallest_budget_block = registry_.block(registry_.unit(result.least_unit).first_block).id;
    out->bytes_per_step = result.bytes_per_step;
    out->bound_bytes_per_step = result.bound_bytes_per_step;
    out->step_ns = static_cast<uint64_t>(result.step_ns);
    out->bound_ns = static_cast<uint64_t>(result.bound_ns);
    out->compute_ns = result.compute_ns;
    out->link_bytes_per_second = result.link_bytes_per_second;
    out->scheduled_blocks = result.resident_blocks + result.streamed_blocks;
    out->resident_blocks = result.resident_blocks;
    out->streamed_blocks = result.streamed_blocks;
    out->padding_bytes = registry_.model_pages() * page - registry_.model_bytes();
}

Status Runtime::plan(const sh_plan_options& options, sh_plan_info* out, Lock& lock) {
    SH_TRY(usable());
    if (!order_.known()) return Status(SH_ERROR_INVALID_STATE, tenant_name() + ": no order is known yet: set a schedule, or run a step");
    if (!(options.flags & SH_PLAN_DRY_RUN) && !gate_.in_step()) {
        if (gate_.views()) return Status(SH_ERROR_BUSY, tenant_name() + ": views are held");
        trimmed_to_ = UINT64_MAX;
        if (replan_due()) {
            if (plan_is_held()) SH_TRY(options.flags & SH_PLAN_DROP_GRAPHS ? drop_graphs(lock) : held_by_graphs());
            SH_TRY(replan(lock, true));
        }
        if (out) describe(plan_, out);
        return Status();
    }
    Planner::Limits with = limits();
    SH_TRY(device_->link(&with.link_bytes_per_ns));
    if ((options.flags & SH_PLAN_DRY_RUN) && options.link_bytes_per_second) with.link_bytes_per_ns = static_cast<double>(options.link_bytes_per_second) / 1e9;
    uint32_t asks = kNone;
    const Needs needs = planner_.needs(order_, with, &asks);
    const uint64_t whole = options.budget_bytes ? options.budget_bytes / device_->page_bytes() : device_->arbiter().total_pages();
    const uint64_t share = std::min({whole, needs.wanted_pages, max_pages_});
    const uint64_t asked = share == whole && options.budget_bytes ? options.budget_bytes : share * device_->page_bytes();
    if (share < needs.least_pages)
        return Status(SH_ERROR_BUDGET, tenant_name() + ": a budget of " + exact_size_text(asked) + " is too small: the smallest that works is " +
                                           exact_size_text(needs.least_pages * device_->page_bytes()) + asked_for_by(asks));
    Planner::Result result;
    SH_TRY(planner_.make(order_, with, share, &result));
    if (!(options.flags & SH_PLAN_DRY_RUN)) {   // when the next step begins
        if ((options.flags & SH_PLAN_DROP_GRAPHS) && replan_due()) drop_graphs_wanted_ = true;
        replan_wanted_ = true;
    }
    if (out) describe(result, out);
    return Status();
}

}  // namespace stagehand::core
