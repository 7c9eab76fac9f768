#include "core/device/refusals.h"

#include <algorithm>

namespace stagehand::core {

std::string Refusals::claimants(const Account* except) const {
    std::string text;
    for (const Account& account : ledger_.accounts()) {
        if (&account == except) continue;
        std::string has;
        const auto add = [&](const char* how, uint64_t pages) {
            if (pages) has += (has.empty() ? " " : ", ") + (how + bytes(pages));
        };
        add("holds ", account.granted);
        add("has reserved ", account.reserved_in_force);
        add("keeps ", account.kept);
        if (account.runs && !account.guest_depth) add("needs to run ", account.needs.least_pages);
        if (account.guest_depth) add("is a guest with ", account.guest.pages + account.guest.workspace_pages);
        if (!has.empty()) text += "; " + account.tenant->tenant_name() + has;
    }
    if (const uint64_t lost = ledger_.budget.lost)
        text += "; " + bytes(lost) + " stay in use until the device is closed, because its driver failed";
    return text;
}

// The smallest budget with which all tenants run, `self` with `least_pages`. Reservations that can be given up do not
// count.
uint64_t Refusals::needed_together(uint64_t now_ns, const Account* self, uint64_t least_pages) const {
    std::vector<policy::Claim> all = ledger_.claims(now_ns);
    if (self) {
        policy::Claim& own = all[ledger_.index_of(*self)];
        own.runs = true;
        own.least_pages = least_pages;
    }
    for (policy::Claim& claim : all)
        if (claim.priority == policy::Priority::secondary) claim.reserved_pages = 0;
    const auto floors = policy::floors(UINT64_MAX, all);
    return floors ? UINT64_MAX - floors->headroom_pages : UINT64_MAX;
}

Status Refusals::least(const Account& self, uint64_t least_pages, uint64_t now_ns) const {
    std::string as_guest;
    if (self.guest_depth)
        as_guest = ", but was let in as a guest with " + bytes(self.guest.pages) +
                   " (for the blocks that were registered before): end that scope and begin it with more bytes, or "
                   "unregister blocks";
    const uint64_t together = needed_together(now_ns, &self, least_pages);
    const std::string by_all = together > ledger_.budget.total && together > least_pages
                                   ? "; all runtimes of the device need " + bytes(together)
                                   : "";
    return Status(SH_ERROR_BUDGET, "it needs " + bytes(least_pages) + " at least" + as_guest + "; of the device's " +
                                       bytes(ledger_.budget.total) + " it can have " + bytes(ledger_.available(&self)) +
                                       by_all + claimants(&self));
}

Status Refusals::share(const Account& self) const {
    return Status(SH_ERROR_BUSY, "its share of " + bytes(self.share) +
                                     " becomes free when other runtimes end their steps and views; now it can have " +
                                     bytes(std::max(ledger_.available(&self), self.granted)) + ", but it needs " +
                                     bytes(self.needs.least_pages) + claimants(&self));
}

Status Refusals::room(const Account& self) const {
    const uint64_t workspace = self.guest.workspace_pages;
    return Status(SH_ERROR_BUSY, "other runtimes still hold part of this runtime's share of " + bytes(self.share) +
                                     (workspace ? ", and " + bytes(workspace) + " of workspace" : "") +
                                     ", until their steps and views end" + claimants(&self));
}

Status Refusals::total(uint64_t pages, uint64_t now_ns) const {
    return Status(SH_ERROR_BUDGET, "a budget of " + bytes(pages) +
                                       " is too small: the runtimes on the device need at least " +
                                       bytes(needed_together(now_ns, nullptr, 0)) + claimants(nullptr));
}

Status Refusals::reservation(const Account& self, uint64_t pages, uint64_t unclaimed_pages) const {
    return Status(SH_ERROR_BUDGET, self.tenant->tenant_name() + ": " + bytes(pages) +
                                       " cannot be reserved: of the device's " + bytes(ledger_.budget.total) + ", " +
                                       bytes(unclaimed_pages) + " are not claimed" + claimants(&self));
}

Status Refusals::guest(const Account& self, const GuestTerms& terms, uint64_t pages, uint64_t room_pages) const {
    return Status(SH_ERROR_BUDGET,
                  self.tenant->tenant_name() + " cannot become a guest: it needs " + bytes(pages) +
                      (terms.workspace_pages ? ", and " + bytes(terms.workspace_pages) + " of workspace" : "") +
                      ", but the headroom is " + bytes(room_pages) + claimants(&self));
}

Status Refusals::larger_guest(const Account& self) const {
    return Status(SH_ERROR_BUDGET, self.tenant->tenant_name() + " is already a guest with " + bytes(self.guest.pages) +
                                       " and " + bytes(self.guest.workspace_pages) +
                                       " of workspace: it can have more only after it has left");
}

}  // namespace stagehand::core
