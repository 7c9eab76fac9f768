#include "core/runtime/plan_in_force.h"

#include <algorithm>
#include <functional>
#include <memory>

#include "base/log.h"
#include "base/no_throw.h"
#include "base/size_text.h"
#include "base/unlocked.h"
#include "core/runtime/patience.h"
#include "telemetry/trace.h"

namespace stagehand::core {
namespace {

constexpr int kMemoryAttempts = 3;

}  // namespace

PlanInForce::PlanInForce(Parts& parts, const Protections& protections, const sh_runtime_options& options)
    : parts_(parts),
      protections_(protections),
      max_held_(std::max(1u, options.max_held)),
      unordered_pages_(options.unordered_bytes / parts.device->page_bytes() +
                       (options.unordered_bytes % parts.device->page_bytes() != 0)),
      share_wait_ns_(options.share_wait_ns),
      planner_(parts.registry),
      watch_(parts) {}

Needs PlanInForce::needs() {
    uint32_t asks = kNone;
    return planner_.needs(parts_.order, limits(), &asks);
}

// What to ask the arbiter for. `out_unit` gets the unit that needs most.
Needs PlanInForce::needs_with_curve(const Planner::Limits& limits, uint32_t* out_unit) {
    uint32_t asks = kNone;
    Needs needs = planner_.needs(parts_.order, limits, out_unit ? out_unit : &asks);
    needs.curve = planner_.curve(parts_.order, limits, needs);
    needs.wanted_pages = std::max(needs.least_pages, std::min({needs.wanted_pages, parts_.max_pages, trimmed_to_}));
    return needs;
}

void PlanInForce::forget(uint32_t unit) {
    if (plan_.least_unit == unit) plan_.least_unit = kNone;
    if (unit < away_.places.size()) away_.places[unit] = {};
    forget_kept(unit);
}

void PlanInForce::forget_kept(uint32_t unit) {
    if (unit < away_.kept_places.size()) away_.kept_places[unit] = UINT64_MAX;
}

bool PlanInForce::is_due() const {
    return is_wanted() || !exists_ || parts_.meter.measured() || parts_.device->arbiter().wants_change(parts_.tenant);
}

void PlanInForce::look_at_times() {
    if (exists_ && parts_.order.known()) look_at_changes();
    if (!exists_ || is_wanted() || !parts_.order.known()) return;
    bool changed = false;
    const Status status = no_throw([&] {  // after a failure, the next sample tells
        Planner::Limits with = limits();
        with.changing = changes_planned_;
        SH_TRY(watch_.speeds().link(&with.link_bytes_per_ns));
        return watch_.look(planner_, with, plan_, &changed);
    });
    wanted_ = wanted_ || (status.ok() && changed);
}

Status PlanInForce::change(Lock& lock, bool press) {
    // What a resume takes may be more than the share that is left when others have taken theirs.
    if (parts_.gate.occupancy() == SH_OCCUPANCY_RELEASED) return parts_.gate.running();
    return behind_closed_door(lock, [&] { return change_plan_again(lock, press); });
}

Status PlanInForce::change_plan_again(Lock& lock, bool press) {
    Status status = change_plan(lock, press);
    // SH_ERROR_OUT_OF_DEVICE_MEMORY: the budget was lowered meanwhile, so the pages that were granted are not free any
    // more.
    for (int again = 0; again < kMemoryAttempts && status.code() == SH_ERROR_OUT_OF_DEVICE_MEMORY; again++)
        status = change_plan(lock, press);
    return status.code() == SH_ERROR_OUT_OF_DEVICE_MEMORY && exists_ ? Status(SH_ERROR_BUDGET, status.text()) : status;
}

Status PlanInForce::behind_closed_door(Lock& lock, const std::function<Status()>& work) {
    const Gate::Inside inside(parts_.gate);
    if (parts_.gate.changing()) {
        parts_.gate.wait(lock, [&] { return !parts_.gate.changing(); });
        return parts_.gate.usable();
    }
    const Gate::ClosedDoor door(parts_.gate);
    parts_.gate.wait(lock, [&] { return parts_.gate.bringings() == 0; });
    SH_TRY(parts_.gate.usable());
    return parts_.gate.views() == 0 ? work() : Status();
}

Status PlanInForce::vacate(Lock& lock) {
    return behind_closed_door(lock, [&] {
        const uint64_t held_before = parts_.placement.pages();
        SH_TRY(empty(lock));
        parts_.stats.given_up_bytes += held_before * parts_.page_bytes();
        plan_ = {};
        exists_ = false;
        parts_.device->arbiter().withdraw(parts_.tenant);
        telemetry::trace_memory(parts_.gate.name().c_str(), parts_.backend().now_ns(), 0);
        return parts_.device->pool().trim(0);
    });
}

// Behind a closed door.
Status PlanInForce::empty(Lock& lock) {
    wanted_ = true;  // so that a failure on the way leaves it set
    SH_TRY(parts_.gate.note(flush_dirty(lock)));
    SH_TRY(parts_.gate.note(quiesce(lock)));
    SH_TRY(parts_.gate.note(parts_.loader.rest()));
    away_.emptied = true;
    SH_TRY(parts_.gate.note(parts_.unordered.resize(0, lock)));
    return parts_.gate.note(parts_.placement.clear());
}

Status PlanInForce::give_back(Lock& lock) {
    SH_TRY(quiesce(lock));
    SH_TRY(parts_.loader.rest());
    for (Unit& unit : parts_.registry.units())
        if (unit.memory == Memory::unordered) SH_TRY(parts_.placement.unmap_whole(unit));
    SH_TRY(parts_.placement.clear());
    return parts_.device->pool().trim(0);
}

Planner::Limits PlanInForce::limits() const {
    Planner::Limits limits;
    limits.max_held = max_held_;
    limits.unordered_pages = unordered_pages_;
    limits.unordered_held_pages = parts_.unordered.held_peak();
    limits.unordered_now = parts_.unordered.capacity();
    limits.keep_all = protections_.all();
    limits.link_bytes_beside = parts_.loader.speed_beside();
    if (parts_.registry.has_packed_tensors()) {
        limits.unpack_ns_per_byte = parts_.device->unpack_ns_per_byte();
        limits.unpack_batch_bytes = parts_.unpack_memory.batch_bytes(parts_.device->arbiter().total_pages());
    }
    limits.copy_latency_ns = parts_.backend().info().copy_latency_ns;
    return limits;
}

// What the arbiter has to know of the plan. If host memory is too short to compute it, the number of protected pages
// stays as it was, and the arbiter does not learn what this runtime could give up.
Holding PlanInForce::holding() noexcept {
    Holding holding;
    holding.pages = std::max(plan_.pages(), parts_.placement.pages());
    holding.kept_pages = parts_.device->arbiter().standing(parts_.tenant).kept;
    (void)no_throw([&] {
        holding.kept_pages = kept_pages();
        holding.parts = parts_to_give_up();
        return Status();
    }).ok();
    return holding;
}

std::vector<policy::Part> PlanInForce::parts_to_give_up() const {
    std::vector<policy::Part> parts;
    if (protections_.all() || !parts_.order.known()) return parts;
    std::vector<bool> seen(parts_.registry.units().size());
    const double a_use_ns = plan_.step_ns / static_cast<double>(parts_.order.followed().size());
    for (uint64_t j = 0; j < parts_.order.followed().size(); j++) {
        const uint32_t index = parts_.order.followed().entries()[j].unit;
        const Unit& unit = parts_.registry.unit(index);
        if (seen[index] || unit.protections || unit.memory != Memory::planned || unit.own.empty()) continue;
        seen[index] = true;
        parts.push_back({static_cast<uint64_t>(a_use_ns * static_cast<double>(j)), unit.own.size()});
    }
    if (plan_.unordered_pages) parts.push_back({static_cast<uint64_t>(plan_.step_ns), plan_.unordered_pages});
    return parts;
}

// The protected pages among those that the runtime holds now: all pages in a scope, else the pages of protected blocks
// and those that the runtime needs to run beside them.
uint64_t PlanInForce::kept_pages() {
    if (!protections_.any()) return 0;
    if (parts_.gate.is_away() && !parts_.placement.pages()) return 0;  // others may have the memory meanwhile
    const uint64_t all = std::max(parts_.placement.pages(), plan_.pages());
    if (protections_.all()) return all;
    const uint64_t own = protections_.own_pages();
    return own ? std::min(all, std::max(own + plan_.least_pages, planner_.pages_with_kept(parts_.order, limits()))) : 0;
}

void PlanInForce::tell_kept() { parts_.device->arbiter().keep(parts_.tenant, kept_pages()); }

void PlanInForce::tell_less_kept() noexcept {
    (void)no_throw([&] { return tell_kept(), Status(); }).ok();
}

// Waits on the host until all work that was begun has ended, so that mappings may change.
Status PlanInForce::quiesce(Lock& lock) {
    parts_.loader.drain(lock);
    Status status = parts_.streams.synchronize_all();
    const bool used = !status.ok();  // a stream that could not be waited for may still use them
    const Status loaded = parts_.loader.synchronize();
    if (loaded.ok()) parts_.loader.note_over();
    if (status.ok()) status = loaded;
    if (Status written = parts_.write_back.finish(lock); status.ok()) status = written;
    if (!used)
        for (Unit& unit : parts_.registry.units()) parts_.contents.forget_uses(unit);
    return status;
}

// While nothing is under way.
Status PlanInForce::get_loader_ready(bool streams) {
    if (!streams) return parts_.loader.rest();
    parts_.loader.get_ready();
    return Status();
}

std::vector<bool> PlanInForce::changing_units() const {
    std::vector<bool> changing;
    if (!parts_.changes.any()) return changing;
    const auto units = parts_.registry.units();
    changing.resize(units.size());
    for (size_t i = 0; i < units.size(); i++)
        changing[i] = units[i].live && parts_.changes.recur(units[i], counts_on_changes(i));
    return changing;
}

// Write-backs need room beside the loads. A few do not. An engine that changes its ways often is followed more and more
// rarely.
void PlanInForce::look_at_changes() {
    constexpr uint64_t kPart = 8;
    constexpr uint32_t kLeastInterval = 8, kMostInterval = 1024;  // steps from one plan to the next
    if (changes_wait_) changes_wait_--;
    if (changes_differ_ || changes_wait_ || (!parts_.changes.any() && changes_planned_.empty())) return;
    struct Pages {
        uint64_t all = 0, other = 0;
        bool differ() const { return other && other * kPart >= all; }
    } streamed, whole;
    const auto units = parts_.registry.units();
    for (size_t i = 0; i < units.size(); i++) {
        if (units[i].memory != Memory::planned) continue;
        const bool planned = counts_on_changes(i), other = parts_.changes.recur(units[i], planned) != planned;
        streamed.all += units[i].ring_pages;
        whole.all += units[i].pages;
        streamed.other += other ? units[i].ring_pages : 0;
        whole.other += other ? units[i].pages : 0;
    }
    changes_differ_ = streamed.all && (streamed.differ() || whole.differ());
    if (!changes_differ_) return;
    changes_interval_ = std::clamp(2 * changes_interval_, kLeastInterval, kMostInterval);
    changes_wait_ = changes_interval_;
}

Status PlanInForce::flush_dirty(Lock& lock) {
    std::vector<uint32_t> blocks;
    for (const Block& block : parts_.registry.blocks())
        if (block.id && (block.flags & SH_BLOCK_MUTABLE)) blocks.push_back(parts_.registry.index_of(block));
    return parts_.write_back.flush(blocks, lock);
}

Status PlanInForce::put_into_force(const Planner::Result& result, Lock& lock) {
    // A unit that is planned from now on keeps the pages that it has. The cache gives up other pages before anything
    // grows.
    std::vector<uint32_t> handed_over;
    for (uint32_t i = 0; i < parts_.registry.units().size(); i++)
        if (parts_.registry.unit(i).memory == Memory::unordered && parts_.order.contains(i)) handed_over.push_back(i);
    for (const uint32_t index : handed_over) parts_.unordered.hand_over(parts_.registry.unit(index));
    const uint64_t capacity_before = parts_.unordered.capacity();
    const bool grows = result.unordered_pages > capacity_before;
    if (!grows) SH_TRY(parts_.unordered.resize(result.unordered_pages, lock));
    if (Status status = parts_.placement.apply(result.places, result.ring_pages, result.unpack); !status.ok()) {
        if (status.code() != SH_ERROR_BUDGET) return status;
        // Refused without any change. So the units and the cache get back what they had.
        for (const uint32_t index : handed_over) parts_.unordered.take_back(parts_.registry.unit(index));
        (void)parts_.unordered.resize(capacity_before, lock).ok();  // not smaller than now, so the cache evicts nothing
        return status;
    }
    return grows ? parts_.unordered.resize(result.unordered_pages, lock) : Status();
}

// No event tells when a step of another runtime has ended. So this call asks again, at growing intervals.
Status PlanInForce::ask_for_share(const Needs& needs, bool press, uint64_t* out_pages, Lock& lock) {
    if (needs.least_pages > parts_.max_pages) return Status(SH_ERROR_BUDGET);
    Patience patience(press ? share_wait_ns_ : 0);
    for (;;) {
        // Without the mutex: other runtimes may be asked to give memory back, and each of them needs its own mutex for
        // that.
        const Status status = unlocked(lock, [&] {
            parts_.device->notice_free_memory(true);
            return parts_.device->retry_after_loans(
                [&] { return parts_.device->arbiter().request(parts_.tenant, needs, press, out_pages); });
        });
        SH_TRY(parts_.gate.usable());
        if (status.code() != SH_ERROR_BUSY || patience.is_over()) return status;
        patience.pause(parts_.gate.changed(), lock, [&] { return parts_.gate.closing(); });
    }
}

BudgetRefusal PlanInForce::refusal(const Planner::Limits& limits) const { return {parts_, limits, planner_.outside()}; }

// Writes the compute times that were measured in the last step into the order.
void PlanInForce::read_times() {
    const uint32_t kind = watch_.measured_kind();
    const bool known = kind != kNone && watch_.kinds().at(kind).live && !watch_.kinds().at(kind).entries.empty();
    auto entries = known ? watch_.kinds().at(kind).entries : parts_.order.followed().entries();
    const bool any = parts_.meter.read(&entries);
    parts_.meter.stop();
    if (!any) return;
    parts_.order.set_times(known ? watch_.kinds().at(kind).order : parts_.order.followed().number(), entries);
    watch_.saw_first_times(entries);
}

void PlanInForce::measure_times_if_missing() {
    const auto& entries = parts_.order.followed().entries();
    const bool missing =
        std::all_of(entries.begin(), entries.end(), [](const Order::Entry& entry) { return entry.compute_ns == 0; });
    if (!parts_.order.known() || !missing || was_measured_) return;
    parts_.meter.start();
    was_measured_ = true;
}

// An order that was learned may need more memory than learning it did: held blocks have fixed places, and blocks that
// were not used need memory beside them. Without an order, blocks are loaded one by one as they come.
Status PlanInForce::change_plan(Lock& lock, bool press) {
    const auto take_up = [&] {
        if (parts_.order.take_up(parts_.registry.units().size())) parts_.prefetcher.renew();
    };
    take_up();
    Status status = plan_with_order(lock, press);
    if (status.code() == SH_ERROR_BUDGET && parts_.order.has_others()) {
        watch_.kinds().refuse_others(parts_.order);
        parts_.order.remove_others_if([](uint32_t) { return true; });
        status = plan_with_order(lock, press);
    }
    if (status.code() != SH_ERROR_BUDGET || !parts_.order.known() || parts_.order.given()) return status;
    parts_.order.set_aside();
    parts_.prefetcher.renew();
    status = plan_with_order(lock, press);
    if (!status.ok()) take_up();  // the old plan may stay in force
    return status;
}

// SH_ERROR_BUDGET: the planner has found no plan. It is asked again with fewer kinds of step.
Status PlanInForce::plan_with_order(Lock& lock, bool press) {
    const uint64_t began = parts_.backend().now_ns();
    if (parts_.registry.has_packed_tensors()) SH_TRY(parts_.device->measure_unpacking(parts_.pages_left()));
    Planner::Limits with = limits();
    with.changing = changing_units();
    // Also before the order is known: later there may be no free page to measure with.
    SH_TRY(watch_.speeds().link(&with.link_bytes_per_ns));
    const bool measured = parts_.meter.measured() && parts_.order.known();
    if (measured) read_times();
    watch_.choose_mix(planner_, max_held_);
    uint32_t asks = kNone;
    const Needs needs = needs_with_curve(with, &asks);
    uint64_t share = 0;
    Status status = ask_for_share(needs, press, &share, lock);
    if (status.code() == SH_ERROR_BUSY) return Status(SH_ERROR_BUSY, parts_.gate.title() + ": " + status.text());
    if (status.code() == SH_ERROR_BUDGET) return refusal(with).of_plan(needs, asks, status);
    SH_TRY(status);
    // Other runtimes did not give up what they hold.
    if (exists_ && !is_wanted() && !measured && share == plan_.share_pages) return Status();
    Planner::Result result;
    const uint64_t sources = parts_.registry.source_changes();
    const uint64_t held_before = parts_.placement.pages();
    // The arbiter has granted more by now than the runtime holds. So the arbiter must learn the result, even after an
    // exception.
    status = no_throw([&] { return planner_.make(parts_.order, with, share, &result); });
    const bool made = status.ok();
    if (made)
        status = no_throw([&] {
            SH_TRY(flush_dirty(lock));
            SH_TRY(quiesce(lock));
            SH_TRY(get_loader_ready(result.bytes_per_step > 0));
            return put_into_force(result, lock);
        });
    if (exists_ && (!made || status.code() == SH_ERROR_BUDGET)) {  // the old plan stays in force
        Holding held = holding();
        held.pages = std::max(held.pages, std::min(share, plan_.share_pages));
        wanted_ = wanted_ || measured;  // the times are in the order, but not yet in a plan
        parts_.device->arbiter().settle(parts_.tenant, std::move(held));
        return made ? Status(SH_ERROR_OUT_OF_DEVICE_MEMORY, status.text()) : status;
    }
    exists_ = status.ok();
    if (!status.ok()) {
        plan_.resident_pages = plan_.ring_pages = plan_.unordered_pages = 0;
        plan_.unpack = {};
        parts_.device->arbiter().settle(parts_.tenant, holding());
        return parts_.gate.note(status);
    }
    if (share < plan_.share_pages && parts_.placement.pages() < held_before)
        parts_.stats.given_up_bytes += (held_before - parts_.placement.pages()) * parts_.page_bytes();
    plan_ = std::move(result);
    sources_planned_ = sources;
    changes_planned_ = std::move(with.changing);
    changes_differ_ = false;
    Holding held = holding();
    held.pages = share;
    parts_.device->arbiter().settle(parts_.tenant, std::move(held));
    wanted_ = trimmed_to_ != UINT64_MAX;  // if trimmed, the next step takes its share again
    parts_.stats.plans++;
    parts_.prefetcher.renew();
    telemetry::trace_plan(parts_.gate.name().c_str(), watch_.reason(), began, parts_.backend().now_ns());
    watch_.plan_changed(planner_, with.link_bytes_per_ns, parts_.backend().now_ns() - began);
    measure_times_if_missing();
    telemetry::trace_memory(parts_.gate.name().c_str(), parts_.backend().now_ns(),
                            parts_.placement.pages() * parts_.page_bytes());
    const auto size = [&](uint64_t pages) { return size_text(pages * parts_.page_bytes()); };
    log_line(SH_LOG_INFO, "%s: plan: %s resident, a ring of %s, %s for blocks outside the order",
             parts_.gate.name().c_str(), size(plan_.resident_pages).c_str(), size(plan_.ring_pages).c_str(),
             size(plan_.unordered_pages).c_str());
    return Status();
}

Status PlanInForce::try_out(const sh_plan_options& options, Planner::Result* out) {
    // An order that is set aside may fit these options.
    struct SetAside {
        void operator()(Order* order) const { order->set_aside(); }
    };
    const bool taken = parts_.order.take_up(parts_.registry.units().size());
    const std::unique_ptr<Order, SetAside> until_end(taken ? &parts_.order : nullptr);
    if (parts_.registry.has_packed_tensors() && !parts_.gate.is_away())
        SH_TRY(parts_.device->measure_unpacking(parts_.pages_left()));
    Planner::Limits with = limits();
    with.changing = changing_units();
    SH_TRY(watch_.speeds().link(&with.link_bytes_per_ns));
    if ((options.flags & SH_PLAN_DRY_RUN) && options.link_bytes_per_second) {
        with.link_bytes_per_ns = static_cast<double>(options.link_bytes_per_second) / 1e9;
        with.link_bytes_beside = 0;
    }
    uint32_t asks = kNone;
    const Needs needs = planner_.needs(parts_.order, with, &asks);
    const uint64_t whole =
        options.budget_bytes ? options.budget_bytes / parts_.page_bytes() : parts_.device->arbiter().total_pages();
    const uint64_t share = std::min({whole, needs.wanted_pages, parts_.max_pages});
    const uint64_t asked = share == whole && options.budget_bytes ? options.budget_bytes : share * parts_.page_bytes();
    if (share < needs.least_pages) return refusal(with).of_trial(asked, needs, asks);
    return planner_.make(parts_.order, with, share, out);
}

}  // namespace stagehand::core
