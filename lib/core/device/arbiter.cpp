#include "core/device/arbiter.h"

#include <algorithm>
#include <utility>

#include "base/no_throw.h"
#include "base/size_text.h"
#include "base/unlocked.h"

namespace stagehand::core {

Arbiter::Member& Arbiter::member(const Tenant& tenant) {
    return *std::find_if(members_.begin(), members_.end(), [&](const Member& m) { return m.tenant == &tenant; });
}

const Arbiter::Member& Arbiter::member(const Tenant& tenant) const {
    return const_cast<Arbiter*>(this)->member(tenant);
}

void Arbiter::join(Tenant& tenant) {
    std::lock_guard lock(mutex_);
    members_.emplace_back();
    members_.back().tenant = &tenant;
    write({.change = Change::join, .tenant = &tenant});
}

void Arbiter::leave(Tenant& tenant, uint64_t lost_pages) noexcept {
    std::lock_guard pressing(pressing_);
    std::lock_guard lock(mutex_);
    std::erase_if(members_, [&](const Member& m) { return m.tenant == &tenant; });
    lost_ += lost_pages;
    const uint64_t now = clock_();
    divide_now_or_later(now, true);
    write({.change = Change::leave, .tenant = &tenant, .now_ns = now, .pages = lost_pages});
}

// The budget, less the part that users outside have taken, and less the pages that tenants have lost when they left.
uint64_t Arbiter::within_reach() const {
    const uint64_t present = std::min(total_, present_);
    return present - std::min(present, lost_);
}

// Pages beyond reach cannot be used for growth. Pages that are claimed for certain count as present.
uint64_t Arbiter::there() const { return std::max(total_ - headroom_, within_reach()); }

// Includes the tenant's own workspace, because its engine takes that memory. Without a tenant: taken by all.
uint64_t Arbiter::taken_besides(const Member* self) const {
    uint64_t taken = lent_;
    for (const Member& m : members_) {
        if (&m != self) taken += m.granted;
        if (m.guest_depth) taken += m.guest.workspace_pages;
    }
    return taken;
}

uint64_t Arbiter::available(const Member* self) const {
    const uint64_t taken = taken_besides(self);
    return taken < there() ? there() - taken : 0;
}

std::string Arbiter::bytes(uint64_t pages) const {
    uint64_t bytes = 0;
    return __builtin_mul_overflow(pages, page_bytes_, &bytes) ? "2^64 bytes or more" : exact_size_text(bytes);
}

std::string Arbiter::claimants(const Member* except) const {
    std::string text;
    for (const Member& m : members_) {
        if (&m == except) continue;
        std::string has;
        const auto add = [&](const char* how, uint64_t pages) {
            if (pages) has += (has.empty() ? " " : ", ") + (how + bytes(pages));
        };
        add("holds ", m.granted);
        add("has reserved ", m.reserved_in_force);
        add("keeps ", m.kept);
        if (m.runs && !m.guest_depth) add("needs to run ", m.needs.least_pages);
        if (m.guest_depth) add("is a guest with ", m.guest.pages + m.guest.workspace_pages);
        if (!has.empty()) text += "; " + m.tenant->tenant_name() + has;
    }
    if (lost_) text += "; " + bytes(lost_) + " stay in use until the device is closed, because its driver failed";
    return text;
}

// The smallest budget with which all tenants run, `self` with `least_pages`. Reservations that can be given up do not
// count.
uint64_t Arbiter::needed_together(const Member* self, uint64_t least_pages) const {
    std::vector<policy::Claim> all = claims(clock_());
    if (self) {
        policy::Claim& own = all[static_cast<size_t>(self - members_.data())];
        own.runs = true;
        own.least_pages = least_pages;
    }
    for (policy::Claim& claim : all)
        if (claim.priority == policy::Priority::secondary) claim.reserved_pages = 0;
    const auto floors = policy::floors(UINT64_MAX, all);
    return floors ? UINT64_MAX - floors->headroom_pages : UINT64_MAX;
}

Status Arbiter::refuse(const Member& self, uint64_t least_pages) const {
    std::string as_guest;
    if (self.guest_depth)
        as_guest = ", but was let in as a guest with " + bytes(self.guest.pages) +
                   " (for the blocks that were registered before): end that scope and begin it with more bytes, or "
                   "unregister blocks";
    const uint64_t together = needed_together(&self, least_pages);
    const std::string by_all =
        together > total_ && together > least_pages ? "; all runtimes of the device need " + bytes(together) : "";
    return Status(SH_ERROR_BUDGET, "it needs " + bytes(least_pages) + " at least" + as_guest + "; of the device's " +
                                       bytes(total_) + " it can have " + bytes(available(&self)) + by_all +
                                       claimants(&self));
}

Status Arbiter::request(Tenant& tenant, const Needs& needs, bool press_others, uint64_t* out_pages) {
    std::unique_lock lock(mutex_);
    Needs before = needs;
    std::swap(member(tenant).needs, before);
    const bool ran = std::exchange(member(tenant).runs, true);
    const auto forget = [&] {
        std::swap(member(tenant).needs, before);
        member(tenant).runs = ran;
    };
    uint64_t now = clock_();
    if (!divide_or_undo(now, member(tenant).guest_depth == 0, forget)) {
        forget();
        const Status status = refuse(member(tenant), needs.least_pages);
        divide_now_or_later(now, true);
        write({.change = Change::ask, .tenant = &tenant, .now_ns = now, .needs = &needs, .status = status.code()});
        return status;
    }
    write({.change = Change::ask, .tenant = &tenant, .now_ns = now, .needs = &needs});
    const auto enough = [&] {
        return available(&member(tenant)) >= std::min(member(tenant).share, needs.wanted_pages);
    };
    if (press_others && !enough()) {
        const Unlocked others(lock);
        press(
            [&] {
                std::lock_guard again(mutex_);
                return enough();
            },
            &tenant);
    }
    // The tenants that gave memory up could not divide again, because host memory was too short. Without a new
    // division, this share would not last.
    if (overdue_) divide_now_or_later(clock_(), true);
    Member& self = member(tenant);
    // The tenant may go on holding what it holds, up to its share, even if others hold more than theirs. Otherwise two
    // tenants that both have to shrink would wait for each other.
    const uint64_t pages = std::min({self.share, std::max(available(&self), self.granted), needs.wanted_pages});
    if (pages < needs.least_pages) {
        // The needs stay known, so that others give back at their next edge.
        const Status busy(SH_ERROR_BUSY, "its share of " + bytes(self.share) +
                                             " becomes free when other runtimes end their steps "
                                             "and views; now it can have " +
                                             bytes(std::max(available(&self), self.granted)) + ", but it needs " +
                                             bytes(needs.least_pages) + claimants(&self));
        const Status status = self.share < needs.least_pages ? refuse(self, needs.least_pages) : busy;
        write({.change = Change::grant, .tenant = &tenant, .pages = pages, .status = status.code()});
        return status;
    }
    self.granted = std::max(self.granted, pages);  // what the tenant holds counts until it reports that it holds less
    write({.change = Change::grant, .tenant = &tenant, .pages = pages});
    *out_pages = pages;
    return Status();
}

void Arbiter::settle(Tenant& tenant, Holding holding) noexcept {
    std::lock_guard lock(mutex_);
    Member& self = member(tenant);
    self.granted = holding.pages;
    self.kept = std::min(self.kept, holding.kept_pages);
    self.holding = std::move(holding);
    const uint64_t now = clock_();
    divide_now_or_later(now, false);
    write({.change = Change::settle, .tenant = &tenant, .now_ns = now, .holding = &self.holding});
}

void Arbiter::withdraw(Tenant& tenant) noexcept {
    std::lock_guard lock(mutex_);
    Member& self = member(tenant);
    self.granted = self.kept = 0;
    self.holding = {};
    self.runs = false;
    const uint64_t now = clock_();
    divide_now_or_later(now, self.guest_depth == 0);
    write({.change = Change::withdraw, .tenant = &tenant, .now_ns = now});
}

// The part of its share that it has a use for.
uint64_t Arbiter::to_hold(const Member& m) { return m.runs ? std::min(m.share, m.needs.wanted_pages) : m.share; }

bool Arbiter::wants_change(const Tenant& tenant) const {
    std::lock_guard lock(mutex_);
    const Member& self = member(tenant);
    const uint64_t pages = to_hold(self);
    if (pages <= self.granted || !self.runs) return pages < self.granted;
    // There is more memory to be had, or others can be asked for it.
    return available(&self) > self.granted || std::any_of(members_.begin(), members_.end(), [&](const Member& m) {
               return &m != &self && m.granted > m.share;
           });
}

bool Arbiter::has_to_give(const Tenant& tenant) const {
    std::lock_guard lock(mutex_);
    const Member& self = member(tenant);
    return self.runs && to_hold(self) < self.granted;
}

uint64_t Arbiter::total_pages() const {
    std::lock_guard lock(mutex_);
    return total_;
}

Status Arbiter::set_total(uint64_t pages) {
    std::lock_guard lock(mutex_);
    const uint64_t before = std::exchange(total_, pages);
    const auto undo = [&] { total_ = before; };
    const uint64_t now = clock_();
    Status status;
    if (!divide_or_undo(now, true, undo)) {
        undo();
        status = Status(SH_ERROR_BUDGET, "a budget of " + bytes(pages) +
                                             " is too small: the runtimes on the device need at least " +
                                             bytes(needed_together()) + claimants(nullptr));
    }
    write({.change = Change::total, .now_ns = now, .pages = pages, .status = status.code()});
    return status;
}

void Arbiter::set_present(uint64_t pages) noexcept {
    std::lock_guard lock(mutex_);
    if (present_ == pages) return;
    const bool matters = std::min(present_, total_) != std::min(pages, total_);
    present_ = pages;
    const uint64_t now = clock_();
    if (matters) divide_now_or_later(now, true);
    write({.change = Change::present, .now_ns = now, .pages = pages});
}

uint64_t Arbiter::pages_to_hold() const {
    std::lock_guard lock(mutex_);
    const Figures figures = current_figures();
    return std::min(total_, there() + lost_) - figures.workspaces;  // lost pages exist
}

uint32_t Arbiter::runtime_count() const {
    std::lock_guard lock(mutex_);
    return static_cast<uint32_t>(
        std::count_if(members_.begin(), members_.end(), [](const Member& m) { return m.tenant->is_runtime(); }));
}

Arbiter::Standing Arbiter::standing(const Member& m) const {
    return {m.tenant, m.share, m.granted, m.kept, m.reserved_in_force, m.guest_depth ? m.guest.pages : 0};
}

Arbiter::Standing Arbiter::standing(const Tenant& tenant) const {
    std::lock_guard lock(mutex_);
    return standing(member(tenant));
}

Arbiter::Figures Arbiter::current_figures() const {
    Figures result;
    for (const Member& m : members_) {
        result.reserved += m.reserved_in_force;
        result.kept += m.kept;
        if (!m.guest_depth) continue;
        result.guests += m.guest.pages + m.guest.workspace_pages;
        result.workspaces += m.guest.workspace_pages;
    }
    result.headroom = there() - (total_ - headroom_);
    return result;
}

Arbiter::Figures Arbiter::figures() const {
    std::lock_guard lock(mutex_);
    return current_figures();
}

void Arbiter::set_journal(Journal journal) {
    std::lock_guard lock(mutex_);
    journal_ = std::move(journal);
}

void Arbiter::write(const Entry& entry) const {
    if (!journal_) return;
    std::vector<Standing> standings;
    for (const Member& m : members_) standings.push_back(standing(m));
    journal_(entry, standings, current_figures());
}

}  // namespace stagehand::core
