#include "arbiter_model.h"

#include <algorithm>
#include <limits>
#include <sstream>
#include <utility>

namespace stagehand::test {
namespace {

using policy::Priority;

constexpr double kNever = std::numeric_limits<double>::infinity();
// A runtime whose rate of use has changed by more than this factor since the last division is a reason to consider a
// new division.
constexpr double kNotable = 1.5;
constexpr double kWeightOfLatest = 0.25;  // in the time between steps

}  // namespace

ArbiterModel::Party& ArbiterModel::of(const core::Tenant& tenant) {
    return *std::find_if(parties_.begin(), parties_.end(), [&](const Party& party) { return party.tenant == &tenant; });
}

// The runtime goes on as regularly as before. A runtime that is late returns after as long again as it has been away.
double ArbiterModel::until_next_step(const Party& party) const {
    if (!party.last_step_ns) return kNever;
    const double away = now_ns > *party.last_step_ns ? static_cast<double>(now_ns - *party.last_step_ns) : 0;
    if (party.period_ns > away) return party.period_ns - away;
    return away;
}

// Returns the steps per second. A runtime that is away for longer than usual counts as used less often than before.
std::optional<double> ArbiterModel::known_rate(const Party& party) const {
    if (party.period_ns == 0) return std::nullopt;
    const double away = now_ns > *party.last_step_ns ? static_cast<double>(now_ns - *party.last_step_ns) : 0;
    return 1e9 / std::max(party.period_ns, away);
}

// The rate is not known after one step. It is then the rate of the busiest runtime, or one step in the time that the
// runtime has been away, whichever is less. 0 if the runtime has made no step.
double ArbiterModel::rate(const Party& party) const {
    if (const std::optional<double> known = known_rate(party)) return *known;
    double busiest = 0;
    for (const Party& other : parties_) busiest = std::max(busiest, known_rate(other).value_or(0));
    if (!party.last_step_ns || now_ns <= *party.last_step_ns) return 0;
    return std::min(busiest, 1e9 / static_cast<double>(now_ns - *party.last_step_ns));
}

// The pages that the runtime has in any case: those that it needs to run or came in with as a guest, protected pages,
// and pages of a PRIMARY reservation.
uint64_t ArbiterModel::firm(const Party& party) {
    uint64_t pages = party.kept;
    if (party.times_guest > 0) pages = std::max(pages, party.terms.pages);
    if (party.times_guest == 0 && party.runs) pages = std::max(pages, party.needs.least_pages);
    if (party.priority == Priority::primary) pages = std::max(pages, party.reserved);
    return pages;
}

uint64_t ArbiterModel::workspaces() const {
    uint64_t pages = 0;
    for (const Party& party : parties_)
        if (party.times_guest > 0) pages += party.terms.workspace_pages;
    return pages;
}

// Of the runtimes that may give, returns the one that is used furthest in the future, and the first among equals.
std::optional<size_t> ArbiterModel::first_to_give(const std::vector<bool>& may) const {
    std::optional<size_t> first;
    for (size_t i = 0; i < parties_.size(); i++) {
        if (!may[i]) continue;
        if (!first || until_next_step(parties_[i]) > until_next_step(parties_[*first])) first = i;
    }
    return first;
}

// SECONDARY reservations hold as long as there is room. Otherwise the reservation of the runtime that is used furthest
// in the future gives way first. Returns nothing if there is still too little room without them.
std::optional<ArbiterModel::Certain> ArbiterModel::certain(uint64_t total) const {
    Certain result;
    uint64_t all = workspaces();
    std::vector<bool> may_give;
    for (const Party& party : parties_) {
        result.pages.push_back(std::max(firm(party), party.reserved));
        all += result.pages.back();
        may_give.push_back(party.priority == Priority::secondary);
    }
    while (all > total) {
        const std::optional<size_t> i = first_to_give(may_give);
        if (!i) return std::nullopt;
        may_give[*i] = false;
        const uint64_t given = std::min(all - total, result.pages[*i] - firm(parties_[*i]));
        result.pages[*i] -= given;
        all -= given;
    }
    result.headroom = total - all;
    return result;
}

// The budget, or the part of it that others inside and outside the process have left, less memory that was never given
// back.
uint64_t ArbiterModel::within_reach() const {
    const uint64_t left = std::min(total_, present_);
    return left > lost_ ? left - lost_ : 0;
}

// Certain pages are there in any case.
uint64_t ArbiterModel::divisible(const Certain& certain) const {
    return std::max(total_ - certain.headroom, within_reach());
}

// Guests take no part.
std::vector<policy::Stake> ArbiterModel::stakes(const Certain& certain) const {
    double most_often = 0;
    for (const Party& party : parties_) most_often = std::max(most_often, rate(party));
    std::vector<policy::Stake> result(parties_.size());
    for (size_t i = 0; i < parties_.size(); i++) {
        const Party& party = parties_[i];
        if (party.times_guest > 0) continue;
        result[i].floor_pages = result[i].most_pages = certain.pages[i];
        if (party.runs) result[i].most_pages = std::max(certain.pages[i], party.needs.wanted_pages);
        // A new runtime counts as used as often as the busiest runtime.
        result[i].steps_per_second = rate(party) > 0 ? rate(party) : most_often > 0 ? most_often : 1;
        result[i].curve = party.needs.curve;
    }
    return result;
}

std::vector<uint64_t> ArbiterModel::best_division(const Certain& certain) const {
    return *policy::divide_by_value(divisible(certain), stakes(certain));
}

bool ArbiterModel::division_is_possible(const Certain& certain) const {
    uint64_t all = 0;
    for (size_t i = 0; i < parties_.size(); i++) {
        const Party& party = parties_[i];
        if (party.times_guest > 0) continue;
        const uint64_t most = std::max(certain.pages[i], party.runs ? party.needs.wanted_pages : 0);
        if (party.division < certain.pages[i] || party.division > most) return false;
        all += party.division;
    }
    return all <= divisible(certain);
}

void ArbiterModel::divide_anew(const Certain& certain) {
    const std::vector<uint64_t> best = best_division(certain);
    for (size_t i = 0; i < parties_.size(); i++) {
        parties_[i].division = best[i];
        parties_[i].rate_then = rate(parties_[i]);
    }
}

// Finds the shares: the division, less the pages that guests and their workspaces take from it. Pages that are used
// furthest in the future are taken first.
void ArbiterModel::hand_out(const Certain& certain) {
    uint64_t divided = 0, lent = workspaces();
    std::vector<policy::Holder> holders(parties_.size());
    std::vector<bool> may_give(parties_.size());
    for (size_t i = 0; i < parties_.size(); i++) {
        Party& party = parties_[i];
        party.in_force = std::min(party.reserved, certain.pages[i]);
        if (party.times_guest > 0) {
            party.share = certain.pages[i];
            lent += party.share;
            continue;
        }
        party.share = party.division;
        divided += party.division;
        holders[i] = {Priority::none, until_next_step(party), party.share - certain.pages[i], party.holding.parts};
        may_give[i] = true;
    }
    const uint64_t free = divisible(certain) - divided;
    uint64_t wanted = lent > free ? lent - free : 0;
    const std::vector<uint64_t> given = policy::choose_victims(wanted, holders);
    for (size_t i = 0; i < parties_.size(); i++) {
        parties_[i].share -= given[i];
        wanted -= given[i];
    }
    while (wanted > 0) {  // pages in no part are taken last
        const std::optional<size_t> i = first_to_give(may_give);
        if (!i) break;
        may_give[*i] = false;
        const uint64_t more = std::min(wanted, parties_[*i].share - certain.pages[*i]);
        parties_[*i].share -= more;
        wanted -= more;
    }
    headroom_ = certain.headroom;
}

// Protected pages are certain as far as they were not promised to other runtimes before.
void ArbiterModel::protect_what_can_be() {
    for (size_t i = 0; i < parties_.size(); i++) {
        if (parties_[i].kept >= parties_[i].holding.kept_pages) continue;
        const std::optional<Certain> now = certain(total_);
        if (!now) return;
        uint64_t others = workspaces();
        for (size_t j = 0; j < parties_.size(); j++)
            if (j != i) others += now->pages[j];
        parties_[i].kept = std::max(parties_[i].kept, std::min(parties_[i].holding.kept_pages, total_ - others));
    }
}

void ArbiterModel::update(bool anew) {
    protect_what_can_be();
    const std::optional<Certain> now = certain(total_);
    if (!now) return;  // break_of_a_promise() reports this
    if (anew || !division_is_possible(*now)) divide_anew(*now);
    hand_out(*now);
}

// The part of the budget that other processes have left. Certain pages are there in any case.
uint64_t ArbiterModel::there() const { return std::max(total_ - headroom_, within_reach()); }

// The pages that no other runtime may hold. Without a runtime: that none may hold.
uint64_t ArbiterModel::free_for(const Party* self) const {
    uint64_t taken = workspaces() + lent_;
    for (const Party& party : parties_)
        if (&party != self) taken += party.granted;
    return there() > taken ? there() - taken : 0;
}

void ArbiterModel::join(const core::Tenant& tenant) {
    parties_.emplace_back();
    parties_.back().tenant = &tenant;
    parties_.back().name = tenant.tenant_name();
}

void ArbiterModel::leave(const core::Tenant& tenant, uint64_t lost_pages) {
    std::erase_if(parties_, [&](const Party& party) { return party.tenant == &tenant; });
    lost_ += lost_pages;
    update(true);
}

sh_status ArbiterModel::ask(const core::Tenant& tenant, const core::Needs& needs) {
    Party& party = of(tenant);
    const Party before = party;
    party.needs = needs;
    party.runs = true;
    if (certain(total_)) {
        update(party.times_guest == 0);
        return SH_OK;
    }
    party.needs = before.needs;
    party.runs = before.runs;
    update(true);
    counts_.refused_asks++;
    return SH_ERROR_BUDGET;
}

// A runtime gets its share as far as the share is free. It may keep the pages that it holds up to its share.
sh_status ArbiterModel::grant(const core::Tenant& tenant, uint64_t* out_pages) {
    Party& party = of(tenant);
    const uint64_t pages = std::min({party.share, party.needs.wanted_pages, std::max(free_for(&party), party.granted)});
    if (pages < party.needs.least_pages) {
        counts_.refused_grants++;
        return party.share < party.needs.least_pages ? SH_ERROR_BUDGET
                                                     : SH_ERROR_BUSY;  // busy: others have still to give back
    }
    counts_.short_grants += pages < std::min(party.share, party.needs.wanted_pages);
    party.granted = std::max(party.granted, pages);
    *out_pages = pages;
    return SH_OK;
}

void ArbiterModel::settle(const core::Tenant& tenant, const core::Holding& holding) {
    Party& party = of(tenant);
    party.granted = holding.pages;
    party.holding = holding;
    party.kept = std::min(party.kept, holding.kept_pages);
    update(false);
}

void ArbiterModel::withdraw(const core::Tenant& tenant) {
    Party& party = of(tenant);
    party.granted = party.kept = 0;
    party.holding = {};
    party.runs = false;
    update(party.times_guest == 0);
}

void ArbiterModel::keep(const core::Tenant& tenant, uint64_t pages) {
    Party& party = of(tenant);
    const bool ends = pages < party.kept && party.division <= party.kept;  // it was what decided the share
    party.holding.kept_pages = pages;
    party.kept = std::min(party.kept, pages);
    update(ends);
}

// A PRIMARY reservation must fit beside all firm pages. A SECONDARY reservation must also fit beside other SECONDARY
// reservations.
sh_status ArbiterModel::reserve(const core::Tenant& tenant, uint64_t pages, Priority priority) {
    Party& party = of(tenant);
    Party as_reserved = party;
    as_reserved.reserved = pages;
    as_reserved.priority = Priority::primary;
    uint64_t all = workspaces() + firm(as_reserved);
    for (const Party& other : parties_) {
        if (&other == &party) continue;
        all += priority == Priority::secondary ? std::max(firm(other), other.reserved) : firm(other);
    }
    if (all > there()) {
        counts_.refused_reservations++;
        return SH_ERROR_BUDGET;
    }
    party.reserved = pages;
    party.priority = priority;
    update(true);
    (priority == Priority::primary ? counts_.primary : counts_.secondary)++;
    return SH_OK;
}

void ArbiterModel::release(const core::Tenant& tenant) {
    of(tenant).reserved = 0;
    of(tenant).priority = Priority::none;
    update(true);
}

// A guest gets pages that no runtime has for certain, and the pages that it has for certain itself, whether it runs or
// not.
sh_status ArbiterModel::begin_guest(const core::Tenant& tenant, const core::GuestTerms& terms) {
    Party& party = of(tenant);
    if (party.times_guest > 0) {
        if (terms.asked_pages > party.terms.pages || terms.workspace_pages > party.terms.workspace_pages)
            return SH_ERROR_BUDGET;
        party.times_guest++;
        return SH_OK;
    }
    if (terms.pages == 0 && terms.workspace_pages == 0) return SH_ERROR_INVALID_STATE;  // nothing to be let in for
    const bool ran = std::exchange(party.runs, false);
    const Certain others = *certain(there());
    party.runs = ran;
    const uint64_t own = others.pages[static_cast<size_t>(&party - parties_.data())];
    const uint64_t room = others.headroom + own;
    const uint64_t for_blocks = room > terms.workspace_pages ? room - terms.workspace_pages : 0;
    const uint64_t wanted = std::max(terms.pages, terms.least_pages);
    const uint64_t pages = terms.shrink ? std::min(wanted, for_blocks) : wanted;
    if (pages < terms.least_pages || std::max(pages, own) + terms.workspace_pages > room) {
        counts_.refused_guests++;
        return SH_ERROR_BUDGET;
    }
    counts_.guests++;
    counts_.shrunk_guests += pages < wanted;
    counts_.workspaces += terms.workspace_pages > 0;
    party.times_guest = 1;
    party.terms = terms;
    party.terms.pages = pages;
    party.division = 0;
    allowed_excess_ += terms.workspace_pages;
    update(false);
    return SH_OK;
}

void ArbiterModel::end_guest(const core::Tenant& tenant) {
    Party& party = of(tenant);
    if (--party.times_guest > 0) return;
    party.terms = {};
    party.runs = false;
    party.division = 0;
    update(false);
}

uint64_t ArbiterModel::lend(uint64_t least, uint64_t most) {
    const uint64_t pages = std::min(most, free_for(nullptr));
    if (pages < least) return 0;
    lent_ += pages;
    return pages;
}

void ArbiterModel::take_back(uint64_t pages, uint64_t lost_pages) {
    lent_ -= pages;
    lost_ += lost_pages;
    if (lost_pages) update(true);
}

sh_status ArbiterModel::set_total(uint64_t pages) {
    if (!certain(pages)) {
        counts_.refused_totals++;
        return SH_ERROR_BUDGET;
    }
    if (pages < total_) allowed_excess_ += total_ - pages;
    (pages < total_ ? counts_.lowered : counts_.raised)++;
    total_ = pages;
    update(true);
    return SH_OK;
}

void ArbiterModel::set_present(uint64_t pages) {
    if (std::min(pages, total_) != std::min(std::exchange(present_, pages), total_)) update(true);
}

void ArbiterModel::note_step(const core::Tenant& tenant) {
    Party& party = of(tenant);
    if (party.last_step_ns && now_ns > *party.last_step_ns) {
        const double latest = static_cast<double>(now_ns - *party.last_step_ns);
        party.period_ns = party.period_ns > 0 ? party.period_ns + kWeightOfLatest * (latest - party.period_ns) : latest;
    }
    party.last_step_ns = now_ns;
    if (parties_.size() < 2) return;
    bool notable = false;
    for (const Party& other : parties_)
        if (rate(other) > other.rate_then * kNotable || other.rate_then > rate(other) * kNotable) notable = true;
    if (!notable) return;
    const std::optional<Certain> now = certain(total_);
    if (!now) return;
    std::vector<uint64_t> present;
    for (const Party& other : parties_) present.push_back(other.division);
    if (!policy::worth_changing(stakes(*now), present, best_division(*now))) return;
    counts_.redivided_by_use++;
    divide_anew(*now);
    hand_out(*now);
}

std::string ArbiterModel::differences(const core::Arbiter& arbiter) const {
    std::ostringstream wrong;
    const auto differ = [&](const std::string& what, uint64_t there, uint64_t here) {
        if (there != here) wrong << what << " is " << there << ", not " << here << "; ";
    };
    core::Ledger::Figures figures;
    figures.workspaces = figures.guests = workspaces();
    for (const Party& party : parties_) {
        const core::Standing standing = arbiter.standing(*party.tenant);
        const uint64_t guest = party.times_guest > 0 ? party.terms.pages : 0;
        differ(party.name + "'s share", standing.share, party.share);
        differ(party.name + "'s granted", standing.granted, party.granted);
        differ(party.name + "'s kept", standing.kept, party.kept);
        differ(party.name + "'s reserved", standing.reserved, party.in_force);
        differ(party.name + "'s guest", standing.guest, guest);
        figures.reserved += party.in_force;
        figures.kept += party.kept;
        figures.guests += guest;
    }
    const core::Ledger::Figures has = arbiter.figures();
    differ("headroom", has.headroom, there() - (total_ - headroom_));
    differ("reserved in all", has.reserved, figures.reserved);
    differ("guests in all", has.guests, figures.guests);
    differ("workspaces", has.workspaces, figures.workspaces);
    differ("kept in all", has.kept, figures.kept);
    differ("the budget", arbiter.total_pages(), total_);
    return wrong.str();
}

// What must hold at any instant.
std::string ArbiterModel::broken_promises() const {
    std::ostringstream wrong;
    uint64_t granted = workspaces(), shares = workspaces(), certain = workspaces();
    bool gave_way = false;
    for (const Party& party : parties_) {
        granted += party.granted;
        shares += party.share;
        certain += std::max(party.in_force, firm(party));
        gave_way = gave_way || party.in_force < party.reserved;
        if (party.granted < party.kept) wrong << party.name << " may hold less than is protected; ";
        if (party.share < party.kept) wrong << party.name << "'s share is less than is protected; ";
        if (party.share < party.in_force) wrong << party.name << "'s share is less than is reserved; ";
        if (party.times_guest && party.share < party.terms.pages)
            wrong << party.name << "'s share is less than it came in with; ";
        if (party.priority == Priority::primary && party.in_force != party.reserved)
            wrong << party.name << "'s PRIMARY reservation is not in force; ";
    }
    if (certain + headroom_ != total_) wrong << "what is certain and the headroom are not the budget; ";
    if (shares > total_) wrong << "the shares are more than the budget: " << shares << "; ";
    if (gave_way && headroom_) wrong << "a SECONDARY reservation has given way although there is headroom; ";
    // A lowered budget, and a guest's workspace, wait for steps and views to end. Memory beyond the budget only shrinks
    // meanwhile.
    if (granted > total_ + allowed_excess_)
        wrong << granted << " pages may be held, beyond the budget of " << total_ << " and " << allowed_excess_ << "; ";
    return wrong.str();
}

std::string ArbiterModel::check(const core::Arbiter& arbiter) {
    const std::string wrong = differences(arbiter) + broken_promises();
    uint64_t granted = workspaces();
    for (const Party& party : parties_) {
        granted += party.granted;
        counts_.gave_way += party.in_force < party.reserved;
        counts_.kept += party.kept > 0;
        counts_.kept_in_part += party.kept < party.holding.kept_pages;
    }
    allowed_excess_ = granted > total_ ? std::min(allowed_excess_, granted - total_) : 0;
    counts_.over_the_budget += allowed_excess_ > 0;
    return wrong;
}

std::string ArbiterModel::describe() const {
    std::ostringstream text;
    text << "budget " << total_ << ", there " << static_cast<int64_t>(present_) << ", headroom " << headroom_ << "\n";
    for (const Party& party : parties_)
        text << "  " << party.name << ": share " << party.share << ", granted " << party.granted << ", division "
             << party.division << ", kept " << party.kept << " of " << party.holding.kept_pages << ", reserved "
             << party.in_force << " of " << party.reserved << " (priority " << static_cast<int>(party.priority)
             << "), guest " << party.times_guest << " x " << party.terms.pages << " + " << party.terms.workspace_pages
             << (party.runs ? ", runs" : ", does not run") << ", needs " << party.needs.least_pages << " to "
             << party.needs.wanted_pages << ", period " << party.period_ns << "\n";
    return text.str();
}

}  // namespace stagehand::test
