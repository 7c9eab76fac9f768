#include "core/device/ledger.h"

#include <algorithm>

#include "base/log.h"
#include "base/no_throw.h"
#include "base/size_text.h"

namespace stagehand::core {

void Ledger::add(Tenant& tenant) {
    accounts_.emplace_back();
    accounts_.back().tenant = &tenant;
}

void Ledger::remove(const Tenant& tenant, uint64_t lost_pages) noexcept {
    std::erase_if(accounts_, [&](const Account& account) { return account.tenant == &tenant; });
    budget.lost += lost_pages;
}

Account& Ledger::of(const Tenant& tenant) {
    return *std::find_if(accounts_.begin(), accounts_.end(),
                         [&](const Account& account) { return account.tenant == &tenant; });
}

std::vector<policy::Claim> Ledger::claims(uint64_t now_ns) const {
    double busiest = 0;
    for (const Account& account : accounts_) busiest = std::max(busiest, account.rate.per_second(now_ns));
    std::vector<policy::Claim> result;
    for (const Account& account : accounts_) {
        policy::Claim claim;
        claim.runs = account.runs;
        claim.guest = account.guest_depth > 0;
        claim.least_pages = account.needs.least_pages;
        claim.wanted_pages = account.needs.wanted_pages;
        claim.protected_pages = account.holding.kept_pages;
        claim.kept_pages = account.kept;
        claim.reserved_pages = account.reserved;
        claim.priority = account.priority;
        claim.guest_pages = account.guest.pages;
        claim.workspace_pages = account.guest.workspace_pages;
        claim.steps_per_second = account.rate.per_second(now_ns, busiest);
        claim.next_step_ns = account.rate.next_step_ns(now_ns);
        claim.curve = account.needs.curve;
        claim.parts = account.holding.parts;
        result.push_back(claim);
    }
    return result;
}

void Ledger::take_over(const policy::BudgetDivision& division, std::span<const policy::Claim> claims) noexcept {
    for (size_t i = 0; i < accounts_.size(); i++) {
        Account& account = accounts_[i];
        account.kept = division.kept[i];
        account.divided = division.divided[i];
        if (division.anew) account.divided_rate = claims[i].steps_per_second;
        account.share = division.shares[i];
        const uint64_t before = std::min(account.reserved, account.reserved_in_force);
        account.reserved_in_force = division.reserved[i];
        if (account.reserved_in_force < before) tell_of_given_up(account);
    }
    headroom_ = division.headroom_pages;
    overdue_ = overdue_ && !division.anew;
}

void Ledger::tell_of_given_up(const Account& account) const noexcept {
    (void)no_throw([&] {
        log_line(SH_LOG_WARNING,
                 "%s: of the %s that were reserved for it, %s are given up because no other memory is left",
                 account.tenant->tenant_name().c_str(), text(account.reserved).c_str(),
                 text(account.reserved - account.reserved_in_force).c_str());
        return Status();
    }).ok();
}

std::string Ledger::text(uint64_t pages) const {
    uint64_t bytes = 0;
    return __builtin_mul_overflow(pages, page_bytes_, &bytes) ? "2^64 bytes or more" : exact_size_text(bytes);
}

bool Ledger::divide(uint64_t now_ns, bool anew) {
    std::vector<uint64_t> before;
    if (!anew && !overdue_)
        for (const Account& account : accounts_) before.push_back(account.divided);
    const std::vector<policy::Claim> all = claims(now_ns);
    const auto division = policy::divide_budget(budget, all, before);
    if (division) take_over(*division, all);
    return division.has_value();
}

void Ledger::divide_now_or_later(uint64_t now_ns, bool anew) noexcept {
    if (!no_throw([&] { return divide(now_ns, anew), Status(); }).ok()) overdue_ = true;
}

void Ledger::reconsider(uint64_t now_ns) {
    if (accounts_.size() < 2) return;
    std::vector<uint64_t> before;
    std::vector<double> rates;
    for (const Account& account : accounts_) {
        before.push_back(account.divided);
        rates.push_back(account.divided_rate);
    }
    const std::vector<policy::Claim> all = claims(now_ns);
    if (const auto division = policy::redivide_budget(budget, all, before, rates)) take_over(*division, all);
}

uint64_t Ledger::taken_besides(const Account* self) const {
    uint64_t taken = lent;
    for (const Account& account : accounts_)
        taken += account.guest.workspace_pages + (&account == self ? 0 : account.granted);
    return taken;
}

uint64_t Ledger::available(const Account* self) const {
    const uint64_t taken = taken_besides(self);
    return taken < there() ? there() - taken : 0;
}

Ledger::Figures Ledger::figures() const {
    Figures result;
    for (const Account& account : accounts_) {
        result.reserved += account.reserved_in_force;
        result.kept += account.kept;
        result.guests += account.guest.pages + account.guest.workspace_pages;
        result.workspaces += account.guest.workspace_pages;
    }
    result.headroom = there() - (budget.total - headroom_);
    return result;
}

}  // namespace stagehand::core
