// ResidencyModel: a plain model of what residency.h says about how much of a device each runtime may hold. The model
// follows a log of changes one by one, computes everything anew after each change, and reports where the log differs.
// It asks the policy only three questions: how pages are divided by value, whether a new division is worth it, and
// which runtime gives. The policy has tests of its own.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "residency_log.h"

namespace stagehand::test {

class ResidencyModel {
public:
    explicit ResidencyModel(uint64_t total_pages) : total_(total_pages), headroom_(total_pages) {}

    // Follows the log. Returns the differences from the model, or an empty text.
    std::string follow(const Record& record);
    // Describes the state for the reader of a failure.
    std::string describe() const;

    // Counts of events so far. A test that meets none of these events proves little.
    struct Counts {
        uint64_t records = 0;
        uint64_t refused_asks = 0, short_grants = 0, refused_grants = 0;
        uint64_t primary = 0, secondary = 0, refused_reservations = 0, gave_way = 0;
        uint64_t guests = 0, shrunk_guests = 0, refused_guests = 0, workspaces = 0;
        uint64_t lowered = 0, raised = 0, refused_totals = 0, present = 0;
        uint64_t kept = 0, kept_in_part = 0, over_the_budget = 0, redivided_by_use = 0, gave_up_under_reservation = 0;
    };
    const Counts& counts() const { return counts_; }

private:
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
        uint64_t agreed = 0;  // the pages that it may hold; less than granted until it has given back
        std::optional<uint64_t> last_step_ns;
        double period_ns = 0;  // between steps
    };
    // The pages that each runtime has for certain, and the rest.
    struct Certain {
        std::vector<uint64_t> pages;
        uint64_t headroom = 0;
    };

    Party* find(const core::Tenant* tenant);
    size_t index_of(const core::Tenant* tenant) const;
    static double until_next_step(const Party& party, uint64_t now_ns);
    static std::optional<double> known_rate(const Party& party, uint64_t now_ns);
    double rate(const Party& party, uint64_t now_ns) const;
    static uint64_t firm(const Party& party);
    uint64_t workspaces() const;
    std::optional<size_t> first_to_give(const std::vector<bool>& may, uint64_t now_ns) const;
    std::optional<Certain> certain(uint64_t total, uint64_t now_ns) const;

    uint64_t divisible(const Certain& certain) const;
    std::vector<policy::Stake> stakes(const Certain& certain, uint64_t now_ns) const;
    std::vector<uint64_t> best_division(const Certain& certain, uint64_t now_ns) const;
    bool division_is_possible(const Certain& certain) const;
    void divide_anew(const Certain& certain, uint64_t now_ns);
    void hand_out(const Certain& certain, uint64_t now_ns);
    void protect_what_can_be(uint64_t now_ns);
    void update(uint64_t now_ns, bool anew);
    uint64_t within_reach() const;
    uint64_t there() const;
    uint64_t free_for(const Party& party) const;

    sh_status ask(Party& party, const Record& record);
    sh_status grant(Party& party, const Record& record, std::string* wrong);
    sh_status reserve(Party& party, const Record& record);
    sh_status begin_guest(Party& party, const Record& record);
    sh_status set_total(const Record& record);
    void note_step(Party& party, uint64_t now_ns);
    void settle(Party& party, const core::Holding& holding, std::string* wrong);

    sh_status apply(const Record& record, std::string* wrong);
    std::string compare(const Record& record) const;
    std::string break_of_a_promise(const Record& record) const;

    uint64_t total_;
    uint64_t present_ = UINT64_MAX;
    uint64_t lost_ = 0;  // not given back by destroyed runtimes
    uint64_t headroom_;
    uint64_t allowed_excess_ =
        0;                        // held beyond the budget, because it was lowered or lent while runtimes were in steps
    std::vector<Party> parties_;  // in the order in which they came
    Counts counts_;
};

std::string text_of(const Record& record);

}  // namespace stagehand::test
