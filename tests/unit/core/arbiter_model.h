// ArbiterModel: a plain model of what residency.h says about how much of a device each runtime may hold. It computes
// everything anew after each call, and tells where the arbiter differs. It asks the policy only three questions: how
// pages are divided by value, whether a new division is worth it, and which runtime gives. The policy has tests of its
// own.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "core/device/arbiter.h"

namespace stagehand::test {

// Each method does what the arbiter's method does, and returns the expected status.
class ArbiterModel {
public:
    explicit ArbiterModel(uint64_t total_pages) : total_(total_pages), headroom_(total_pages) {}

    // A tenant and what it may hold.
    struct Party {
        const core::Tenant* tenant = nullptr;
        std::string name;
        bool runs = false;  // has asked for memory, and has not left it
        core::Needs needs;
        core::Holding holding;
        uint64_t kept = 0;
        uint64_t reserved = 0;
        policy::Priority priority = policy::Priority::none;
        uint64_t in_force = 0;  // of the reservation
        uint64_t times_guest = 0;
        core::GuestTerms terms;
        uint64_t division = 0;  // its part when there are no guests
        double rate_then = 0;   // of use, when that was found
        uint64_t share = 0;
        uint64_t granted = 0;
        std::optional<uint64_t> last_step_ns;
        double period_ns = 0;  // between steps
    };
    Party& of(const core::Tenant& tenant);

    void join(const core::Tenant& tenant);
    void leave(const core::Tenant& tenant, uint64_t lost_pages);
    // The two parts of a request. Between them, others may give memory back.
    sh_status ask(const core::Tenant& tenant, const core::Needs& needs);
    sh_status grant(const core::Tenant& tenant, uint64_t* out_pages);
    void settle(const core::Tenant& tenant, const core::Holding& holding);
    void withdraw(const core::Tenant& tenant);
    void keep(const core::Tenant& tenant, uint64_t pages);
    void note_step(const core::Tenant& tenant);
    sh_status reserve(const core::Tenant& tenant, uint64_t pages, policy::Priority priority);
    void release(const core::Tenant& tenant);
    sh_status begin_guest(const core::Tenant& tenant, const core::GuestTerms& terms);
    void end_guest(const core::Tenant& tenant);
    uint64_t lend(uint64_t least, uint64_t most);
    void take_back(uint64_t pages, uint64_t lost_pages);
    sh_status set_total(uint64_t pages);
    void set_present(uint64_t pages);

    // Returns how the arbiter differs from this, and which promises are broken, or an empty text.
    std::string check(const core::Arbiter& arbiter);
    std::string describe() const;

    // Counts of events so far. A test that meets none of these events proves little.
    struct Counts {
        uint64_t refused_asks = 0, short_grants = 0, refused_grants = 0;
        uint64_t primary = 0, secondary = 0, refused_reservations = 0, gave_way = 0;
        uint64_t guests = 0, shrunk_guests = 0, refused_guests = 0, workspaces = 0;
        uint64_t lowered = 0, raised = 0, refused_totals = 0;
        uint64_t kept = 0, kept_in_part = 0, over_the_budget = 0, redivided_by_use = 0;
    };
    const Counts& counts() const { return counts_; }

    uint64_t now_ns = 1;

private:
    // The pages that each runtime has for certain, and the rest.
    struct Certain {
        std::vector<uint64_t> pages;
        uint64_t headroom = 0;
    };

    double until_next_step(const Party& party) const;
    std::optional<double> known_rate(const Party& party) const;
    double rate(const Party& party) const;
    static uint64_t firm(const Party& party);
    uint64_t workspaces() const;
    std::optional<size_t> first_to_give(const std::vector<bool>& may) const;
    std::optional<Certain> certain(uint64_t total) const;

    uint64_t divisible(const Certain& certain) const;
    std::vector<policy::Stake> stakes(const Certain& certain) const;
    std::vector<uint64_t> best_division(const Certain& certain) const;
    bool division_is_possible(const Certain& certain) const;
    void divide_anew(const Certain& certain);
    void hand_out(const Certain& certain);
    void protect_what_can_be();
    void update(bool anew);
    uint64_t within_reach() const;
    uint64_t there() const;
    uint64_t free_for(const Party* party) const;
    std::string differences(const core::Arbiter& arbiter) const;
    std::string broken_promises() const;

    uint64_t total_;
    uint64_t present_ = UINT64_MAX;
    uint64_t lost_ = 0;  // not given back by tenants that left
    uint64_t lent_ = 0;
    uint64_t headroom_;
    uint64_t allowed_excess_ = 0;  // held beyond the budget, because it was lowered or lent meanwhile
    std::vector<Party> parties_;   // in the order in which they came
    Counts counts_;
};

}  // namespace stagehand::test
