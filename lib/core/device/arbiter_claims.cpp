// Claims beyond what runtimes need to run: protected pages, reservations, guests, and loans for a moment.
#include <algorithm>
#include <utility>

#include "core/device/arbiter.h"

namespace stagehand::core {

void Arbiter::keep(Tenant& tenant, uint64_t pages) noexcept {
    std::lock_guard lock(mutex_);
    Member& self = member(tenant);
    // If the protection decided the share, the end of the protection is a reason for a new division.
    const bool decided = self.divided <= self.kept && pages < self.kept;
    self.holding.kept_pages = pages;
    self.kept = std::min(self.kept, pages);
    const uint64_t now = clock_();
    divide_now_or_later(now, decided);
    write({.change = Change::keep, .tenant = &tenant, .now_ns = now, .pages = pages});
}

Status Arbiter::reserve(Tenant& tenant, uint64_t pages, policy::Priority priority, uint64_t* out_number) {
    std::lock_guard lock(mutex_);
    Member& self = member(tenant);
    const uint64_t now = clock_();
    Status status;
    // A reservation is promised completely. Secondary reservations are given up for a primary one, but not for each
    // other.
    auto all = claims(now);
    const size_t index = static_cast<size_t>(&self - members_.data());
    all[index].reserved_pages = pages;
    for (size_t i = 0; i < all.size(); i++)
        if (i == index || priority == policy::Priority::secondary) all[i].priority = policy::Priority::primary;
    if (!policy::floors(there(), all)) {
        uint64_t others = 0;
        all[index].reserved_pages = 0;
        if (const auto rest = policy::floors(there(), all)) others = rest->headroom_pages + rest->pages[index];
        status = Status(SH_ERROR_BUDGET, tenant.tenant_name() + ": " + bytes(pages) +
                                             " cannot be reserved: of the device's " + bytes(total_) + ", " +
                                             bytes(others) + " are not claimed" + claimants(&self));
    } else {
        const uint64_t before = std::exchange(self.reserved, pages);
        const policy::Priority priority_before = std::exchange(self.priority, priority);
        divide_or_undo(now, true, [&] {
            self.reserved = before;
            self.priority = priority_before;
        });
        *out_number = ++self.reservation;
    }
    write({.change = Change::reserve,
           .tenant = &tenant,
           .now_ns = now,
           .pages = pages,
           .priority = priority,
           .status = status.code()});
    return status;
}

bool Arbiter::release_reservation(Tenant& tenant, uint64_t number) noexcept {
    std::lock_guard lock(mutex_);
    Member& self = member(tenant);
    if (self.reservation != number) return false;
    self.reserved = self.reserved_in_force = 0;
    self.priority = policy::Priority::none;
    const uint64_t now = clock_();
    divide_now_or_later(now, true);
    write({.change = Change::release, .tenant = &tenant, .now_ns = now});
    return true;
}

Status Arbiter::begin_guest(Tenant& tenant, const GuestTerms& terms) {
    std::lock_guard lock(mutex_);
    Member& self = member(tenant);
    const uint64_t now = clock_();
    Status status;
    if (self.guest_depth == 0 && terms.pages == 0 && terms.workspace_pages == 0) {
        status =
            Status(SH_ERROR_INVALID_STATE,
                   tenant.tenant_name() +
                       " cannot become a guest without blocks: register its blocks first, or pass a number of bytes");
    } else if (self.guest_depth == 0) {
        auto all = claims(now);
        const size_t index = static_cast<size_t>(&self - members_.data());
        all[index].runs = false;  // its claim as a guest replaces its earlier claim
        const auto others = policy::floors(there(), all);
        // Protected or reserved pages, which it has beside its workspace.
        const uint64_t own = others ? others->pages[index] : 0;
        const uint64_t room = others ? others->headroom_pages + own : 0;
        const uint64_t wanted = std::max(terms.pages, terms.least_pages);
        const uint64_t for_blocks = room - std::min(room, terms.workspace_pages);
        const uint64_t pages = terms.shrink ? std::min(wanted, for_blocks) : wanted;
        if (pages < terms.least_pages || std::max(pages, own) > room ||
            terms.workspace_pages > room - std::max(pages, own)) {
            const uint64_t asked = terms.shrink ? terms.least_pages : wanted;
            status =
                Status(SH_ERROR_BUDGET,
                       tenant.tenant_name() + " cannot become a guest: it needs " + bytes(asked) +
                           (terms.workspace_pages ? ", and " + bytes(terms.workspace_pages) + " of workspace" : "") +
                           ", but the headroom is " + bytes(room) + claimants(&self));
        } else {
            self.guest = terms;
            self.guest.pages = pages;
            self.guest_depth = 1;
            const uint64_t divided = std::exchange(self.divided, 0);
            divide_or_undo(now, false, [&] {
                self.guest = {};
                self.guest_depth = 0;
                self.divided = divided;
            });
        }
    } else if (terms.asked_pages > self.guest.pages || terms.workspace_pages > self.guest.workspace_pages) {
        status = Status(SH_ERROR_BUDGET, tenant.tenant_name() + " is already a guest with " + bytes(self.guest.pages) +
                                             " and " + bytes(self.guest.workspace_pages) +
                                             " of workspace: it can have more only after it has left");
    } else {
        self.guest_depth++;
    }
    write({.change = Change::guest, .tenant = &tenant, .now_ns = now, .terms = &terms, .status = status.code()});
    return status;
}

bool Arbiter::end_guest(Tenant& tenant) noexcept {
    std::lock_guard lock(mutex_);
    Member& self = member(tenant);
    const uint64_t now = clock_();
    const bool last = --self.guest_depth == 0;
    if (last) {
        self.guest = {};
        self.runs = false;
        self.divided = 0;
        divide_now_or_later(now, false);
    }
    write({.change = Change::guest_end, .tenant = &tenant, .now_ns = now});
    return last;
}

uint64_t Arbiter::lend(uint64_t least, uint64_t most) noexcept {
    std::lock_guard lock(mutex_);
    const uint64_t pages = std::min(most, available(nullptr));
    if (pages < least) return 0;
    lent_ += pages;
    return pages;
}

void Arbiter::take_back(uint64_t pages, uint64_t lost_pages) noexcept {
    std::lock_guard lock(mutex_);
    lent_ -= pages;
    lost_ += lost_pages;
    if (lost_pages) divide_now_or_later(clock_(), true);
}

}  // namespace stagehand::core
