#include "core/device/arbiter.h"

#include <algorithm>
#include <utility>

#include "base/no_throw.h"
#include "base/unlocked.h"

namespace stagehand::core {

void Arbiter::join(Tenant& tenant) {
    const std::lock_guard lock(mutex_);
    ledger_.add(tenant);
}

void Arbiter::leave(Tenant& tenant, uint64_t lost_pages) noexcept {
    const auto pause = reclaimer_.pause();
    const std::lock_guard lock(mutex_);
    ledger_.remove(tenant, lost_pages);
    ledger_.divide_now_or_later(clock_(), true);
}

Status Arbiter::request(Tenant& tenant, const Needs& needs, bool reclaim, uint64_t* out_pages) {
    std::unique_lock lock(mutex_);
    const auto self = [&]() -> Account& { return ledger_.of(tenant); };  // others may join and leave meanwhile
    Needs before = needs;
    std::swap(self().needs, before);
    const bool ran = std::exchange(self().runs, true);
    const auto forget = [&] {
        std::swap(self().needs, before);
        self().runs = ran;
    };
    if (!ledger_.divide_or_undo(clock_(), self().guest_depth == 0, forget)) {
        const Status refused = refusals_.least(self(), needs.least_pages, clock_());
        ledger_.divide_now_or_later(clock_(), true);
        return refused;
    }
    const auto enough = [&] { return ledger_.available(&self()) >= std::min(self().share, needs.wanted_pages); };
    if (reclaim && !enough()) {
        const Unlocked others(lock);
        reclaimer_.reclaim(enough, &tenant);
    }
    // The tenants that gave memory up could not divide again, because host memory was too short. Without a new
    // division, this share would not last.
    if (ledger_.is_overdue()) ledger_.divide_now_or_later(clock_(), true);
    Account& account = self();
    // The tenant may go on holding what it holds, up to its share, even if others hold more than theirs. Otherwise two
    // tenants that both have to shrink would wait for each other.
    const uint64_t pages =
        std::min({account.share, std::max(ledger_.available(&account), account.granted), needs.wanted_pages});
    // If it is busy, the needs stay known, so that others give back at their next edge.
    if (pages < needs.least_pages)
        return account.share < needs.least_pages ? refusals_.least(account, needs.least_pages, clock_())
                                                 : refusals_.share(account);
    account.granted = std::max(account.granted, pages);  // what it holds counts until it reports that it holds less
    *out_pages = pages;
    return Status();
}

void Arbiter::settle(Tenant& tenant, Holding holding) noexcept {
    const std::lock_guard lock(mutex_);
    Account& self = ledger_.of(tenant);
    self.granted = holding.pages;
    self.kept = std::min(self.kept, holding.kept_pages);
    self.holding = std::move(holding);
    ledger_.divide_now_or_later(clock_(), false);
}

void Arbiter::withdraw(Tenant& tenant) noexcept {
    const std::lock_guard lock(mutex_);
    Account& self = ledger_.of(tenant);
    self.granted = self.kept = 0;
    self.holding = {};
    self.runs = false;
    ledger_.divide_now_or_later(clock_(), self.guest_depth == 0);
}

void Arbiter::keep(Tenant& tenant, uint64_t pages) noexcept {
    const std::lock_guard lock(mutex_);
    Account& self = ledger_.of(tenant);
    // If the protection decided the share, the end of the protection is a reason for a new division.
    const bool decided = self.divided <= self.kept && pages < self.kept;
    self.holding.kept_pages = pages;
    self.kept = std::min(self.kept, pages);
    ledger_.divide_now_or_later(clock_(), decided);
}

void Arbiter::note_step(Tenant& tenant) noexcept {
    const std::lock_guard lock(mutex_);
    const uint64_t now = clock_();
    ledger_.of(tenant).rate.note_step(now);
    // Without host memory the division stays as it is.
    (void)no_throw([&] { return ledger_.reconsider(now), Status(); }).ok();
}

bool Arbiter::wants_change(const Tenant& tenant) const {
    const std::lock_guard lock(mutex_);
    const Account& self = ledger_.of(tenant);
    const uint64_t pages = self.to_hold();
    if (pages <= self.granted || !self.runs) return pages < self.granted;
    // There is more memory to be had, or others can be asked for it.
    const auto others = ledger_.accounts();
    return ledger_.available(&self) > self.granted || std::any_of(others.begin(), others.end(), [&](const Account& a) {
               return &a != &self && a.granted > a.share;
           });
}

bool Arbiter::has_to_give(const Tenant& tenant) const {
    const std::lock_guard lock(mutex_);
    const Account& self = ledger_.of(tenant);
    return self.runs && self.to_hold() < self.granted;
}

Status Arbiter::reserve(Tenant& tenant, uint64_t pages, policy::Priority priority, uint64_t* out_number) {
    const std::lock_guard lock(mutex_);
    Account& self = ledger_.of(tenant);
    const uint64_t now = clock_();
    // A reservation is promised completely. Secondary reservations are given up for a primary one, but not for each
    // other.
    auto all = ledger_.claims(now);
    const size_t index = ledger_.index_of(self);
    all[index].reserved_pages = pages;
    for (size_t i = 0; i < all.size(); i++)
        if (i == index || priority == policy::Priority::secondary) all[i].priority = policy::Priority::primary;
    if (!policy::floors(ledger_.there(), all)) {
        all[index].reserved_pages = 0;
        const auto rest = policy::floors(ledger_.there(), all);
        return refusals_.reservation(self, pages, rest ? rest->headroom_pages + rest->pages[index] : 0);
    }
    const uint64_t before = std::exchange(self.reserved, pages);
    const policy::Priority priority_before = std::exchange(self.priority, priority);
    ledger_.divide_or_undo(now, true, [&] {
        self.reserved = before;
        self.priority = priority_before;
    });
    *out_number = ++self.reservation;
    return Status();
}

bool Arbiter::release_reservation(Tenant& tenant, uint64_t number) noexcept {
    const std::lock_guard lock(mutex_);
    Account& self = ledger_.of(tenant);
    if (self.reservation != number) return false;
    self.reserved = self.reserved_in_force = 0;
    self.priority = policy::Priority::none;
    ledger_.divide_now_or_later(clock_(), true);
    return true;
}

Status Arbiter::begin_guest(Tenant& tenant, const GuestTerms& terms) {
    const std::lock_guard lock(mutex_);
    Account& self = ledger_.of(tenant);
    if (!self.guest_depth) return let_in(self, terms);
    if (terms.asked_pages > self.guest.pages || terms.workspace_pages > self.guest.workspace_pages)
        return refusals_.larger_guest(self);
    self.guest_depth++;
    return Status();
}

Status Arbiter::let_in(Account& self, const GuestTerms& terms) {
    if (!terms.pages && !terms.workspace_pages)
        return Status(
            SH_ERROR_INVALID_STATE,
            self.tenant->tenant_name() +
                " cannot become a guest without blocks: register its blocks first, or pass a number of bytes");
    const uint64_t now = clock_();
    auto all = ledger_.claims(now);
    const size_t index = ledger_.index_of(self);
    all[index].runs = false;  // its claim as a guest replaces its earlier claim
    const auto others = policy::floors(ledger_.there(), all);
    // Protected or reserved pages, which it has beside its workspace.
    const uint64_t own = others ? others->pages[index] : 0;
    const uint64_t room = others ? others->headroom_pages + own : 0;
    const uint64_t wanted = std::max(terms.pages, terms.least_pages);
    const uint64_t for_blocks = room - std::min(room, terms.workspace_pages);
    const uint64_t pages = terms.shrink ? std::min(wanted, for_blocks) : wanted;
    if (pages < terms.least_pages || std::max(pages, own) > room || terms.workspace_pages > room - std::max(pages, own))
        return refusals_.guest(self, terms, terms.shrink ? terms.least_pages : wanted, room);
    self.guest = terms;
    self.guest.pages = pages;
    self.guest_depth = 1;
    const uint64_t divided = std::exchange(self.divided, 0);
    ledger_.divide_or_undo(now, false, [&] {
        self.guest = {};
        self.guest_depth = 0;
        self.divided = divided;
    });
    return Status();
}

bool Arbiter::end_guest(Tenant& tenant) noexcept {
    const std::lock_guard lock(mutex_);
    Account& self = ledger_.of(tenant);
    if (--self.guest_depth) return false;
    self.guest = {};
    self.runs = false;
    self.divided = 0;
    ledger_.divide_now_or_later(clock_(), false);
    return true;
}

uint64_t Arbiter::lend(uint64_t least, uint64_t most) noexcept {
    const std::lock_guard lock(mutex_);
    const uint64_t pages = std::min(most, ledger_.available(nullptr));
    if (pages < least) return 0;
    ledger_.lent += pages;
    return pages;
}

void Arbiter::take_back(uint64_t pages, uint64_t lost_pages) noexcept {
    const std::lock_guard lock(mutex_);
    ledger_.lent -= pages;
    ledger_.budget.lost += lost_pages;
    if (lost_pages) ledger_.divide_now_or_later(clock_(), true);
}

uint64_t Arbiter::total_pages() const {
    const std::lock_guard lock(mutex_);
    return ledger_.budget.total;
}

Status Arbiter::set_total(uint64_t pages) {
    const std::lock_guard lock(mutex_);
    const uint64_t before = std::exchange(ledger_.budget.total, pages);
    const uint64_t now = clock_();
    if (ledger_.divide_or_undo(now, true, [&] { ledger_.budget.total = before; })) return Status();
    return refusals_.total(pages, now);
}

void Arbiter::set_present(uint64_t pages) noexcept {
    const std::lock_guard lock(mutex_);
    policy::Budget& budget = ledger_.budget;
    const uint64_t before = std::exchange(budget.present, pages);
    if (std::min(before, budget.total) != std::min(pages, budget.total)) ledger_.divide_now_or_later(clock_(), true);
}

uint64_t Arbiter::pages_to_hold() const {
    const std::lock_guard lock(mutex_);
    // Lost pages exist.
    return std::min(ledger_.budget.total, ledger_.there() + ledger_.budget.lost) - ledger_.figures().workspaces;
}

Status Arbiter::check_room(const Tenant& tenant) const {
    const std::lock_guard lock(mutex_);
    const Account& self = ledger_.of(tenant);
    return ledger_.has_room(self) ? Status() : refusals_.room(self);
}

uint32_t Arbiter::runtime_count() const {
    const std::lock_guard lock(mutex_);
    const auto all = ledger_.accounts();
    return static_cast<uint32_t>(
        std::count_if(all.begin(), all.end(), [](const Account& account) { return account.tenant->is_runtime(); }));
}

Ledger::Figures Arbiter::figures() const {
    const std::lock_guard lock(mutex_);
    return ledger_.figures();
}

Standing Arbiter::standing(const Tenant& tenant) const {
    const std::lock_guard lock(mutex_);
    return ledger_.of(tenant).standing();
}

}  // namespace stagehand::core
