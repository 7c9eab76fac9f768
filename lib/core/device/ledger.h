// Ledger: what each tenant of a device claims, what the division of the budget gives it, and what it may hold. It has
// no lock and no clock.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "core/device/tenant.h"
#include "policy/budget_division.h"
#include "policy/step_rate.h"

namespace stagehand::core {

// What a tenant may hold and what is promised to it, in pages.
struct Standing {
    const Tenant* tenant = nullptr;
    uint64_t share = 0;    // pages that the tenant should hold
    uint64_t granted = 0;  // pages that the tenant may hold now
    uint64_t kept = 0;
    uint64_t reserved = 0;
    uint64_t guest = 0;
    bool operator==(const Standing&) const = default;
};

struct Account {
    Tenant* tenant = nullptr;
    Needs needs;
    Holding holding;
    bool runs = false;  // has asked, and has not withdrawn
    uint64_t kept = 0;  // the part of holding.kept_pages that was not promised to others before
    uint64_t reserved = 0;
    policy::Priority priority = policy::Priority::none;
    uint64_t reserved_in_force = 0;
    uint64_t reservation = 0;  // its number
    uint32_t guest_depth = 0;
    GuestTerms guest;         // nothing if guest_depth is 0
    uint64_t divided = 0;     // what the division gives it, without guests
    double divided_rate = 0;  // how often it was used at the time of that division
    uint64_t share = 0;
    uint64_t granted = 0;  // pages that it may hold now
    policy::StepRate rate;

    // The part of its share that it has a use for.
    uint64_t to_hold() const { return runs && needs.wanted_pages < share ? needs.wanted_pages : share; }
    Standing standing() const { return {tenant, share, granted, kept, reserved_in_force, guest.pages}; }
};

class Ledger {
public:
    explicit Ledger(uint64_t page_bytes) : page_bytes_(page_bytes) {}

    void add(Tenant& tenant);
    // Its `lost_pages` are never given back.
    void remove(const Tenant& tenant, uint64_t lost_pages) noexcept;
    // The tenant has an account.
    Account& of(const Tenant& tenant);
    const Account& of(const Tenant& tenant) const { return const_cast<Ledger*>(this)->of(tenant); }
    std::span<const Account> accounts() const { return accounts_; }
    size_t index_of(const Account& account) const { return static_cast<size_t>(&account - accounts_.data()); }

    // One for each account.
    std::vector<policy::Claim> claims(uint64_t now_ns) const;
    // Finds all shares. Without `anew` the present division is kept as long as it is possible. False without any change
    // if the certain claims do not fit. Throws without any change if host memory is too short.
    bool divide(uint64_t now_ns, bool anew);
    // `undo` reverts the change that caused the new division, unless that succeeds.
    template <class Undo>
    bool divide_or_undo(uint64_t now_ns, bool anew, Undo&& undo) {
        try {
            if (divide(now_ns, anew)) return true;
        } catch (...) {
            undo();
            throw;
        }
        undo();
        return false;
    }
    // If host memory is too short, shares stay as they are until the next division, which is anew.
    void divide_now_or_later(uint64_t now_ns, bool anew) noexcept;
    bool is_overdue() const { return overdue_; }
    // Divides anew if tenants are used more or less often than before, and if that is worth it.
    void reconsider(uint64_t now_ns);

    // The pages of the budget that are there, for growth or for what is certain.
    uint64_t there() const { return budget.there(headroom_); }
    // Includes the account's own workspace, because its engine takes that memory. Without an account: taken by all.
    uint64_t taken_besides(const Account* account) const;
    uint64_t available(const Account* account) const;
    // The workspace must be free even if the tenant needs no pages for itself.
    bool has_room(const Account& account) const { return taken_besides(&account) + account.share <= there(); }

    std::string text(uint64_t pages) const;  // as bytes
    // In pages.
    struct Figures {
        uint64_t reserved = 0;
        uint64_t guests = 0;  // includes workspaces
        uint64_t workspaces = 0;
        uint64_t kept = 0;
        // What one more guest could get. Limited to the pages within reach if the budget is larger.
        uint64_t headroom = 0;
    };
    Figures figures() const;

    policy::Budget budget;
    uint64_t lent = 0;  // pages that are lent for a moment

private:
    void take_over(const policy::BudgetDivision& division, std::span<const policy::Claim> claims) noexcept;
    void tell_of_given_up(const Account& account) const noexcept;

    const uint64_t page_bytes_;
    std::vector<Account> accounts_;
    uint64_t headroom_ = 0;  // of the whole budget, whether or not it is within reach
    bool overdue_ = false;   // a division failed because host memory was too short
};

}  // namespace stagehand::core
