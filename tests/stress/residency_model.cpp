#include "residency_model.h"

#include <algorithm>
#include <limits>

namespace stagehand::test {
namespace {

using Change = Arbiter::Change;
using policy::Priority;

constexpr double kNever = std::numeric_limits<double>::infinity();
// A runtime whose rate of use has changed by more than this factor since the last division is a reason to consider a
// new division.
constexpr double kNotable = 1.5;
constexpr double kWeightOfLatest = 0.25;  // in the time between steps

}  // namespace

ResidencyModel::Party* ResidencyModel::find(const core::Tenant* tenant) {
    for (Party& party : parties_)
        if (party.tenant == tenant) return &party;
    return nullptr;
}

size_t ResidencyModel::index_of(const core::Tenant* tenant) const {
    size_t i = 0;
    while (parties_[i].tenant != tenant) i++;
    return i;
}

// The runtime goes on as regularly as before. A runtime that is late returns after as long again as it has been away.
double ResidencyModel::until_next_step(const Party& party, uint64_t now_ns) {
    if (!party.last_step_ns) return kNever;
    const double away = now_ns > *party.last_step_ns ? static_cast<double>(now_ns - *party.last_step_ns) : 0;
    if (party.period_ns > away) return party.period_ns - away;
    return away;
}

// Returns the steps per second. A runtime that is away for longer than usual counts as used less often than before.
std::optional<double> ResidencyModel::known_rate(const Party& party, uint64_t now_ns) {
    if (party.period_ns == 0) return std::nullopt;
    const double away = now_ns > *party.last_step_ns ? static_cast<double>(now_ns - *party.last_step_ns) : 0;
    return 1e9 / std::max(party.period_ns, away);
}

// The rate is not known after one step. It is then the rate of the busiest runtime, or one step in the time that the
// runtime has been away, whichever is less. 0 if the runtime has made no step.
double ResidencyModel::rate(const Party& party, uint64_t now_ns) const {
    if (const std::optional<double> known = known_rate(party, now_ns)) return *known;
    double busiest = 0;
    for (const Party& other : parties_) busiest = std::max(busiest, known_rate(other, now_ns).value_or(0));
    if (!party.last_step_ns || now_ns <= *party.last_step_ns) return 0;
    return std::min(busiest, 1e9 / static_cast<double>(now_ns - *party.last_step_ns));
}

// The pages that the runtime has in any case: those that it needs to run or came in with as a guest, protected pages,
// and pages of a PRIMARY reservation.
uint64_t ResidencyModel::firm(const Party& party) {
    uint64_t pages = party.kept;
    if (party.times_guest > 0) pages = std::max(pages, party.terms.pages);
    if (party.times_guest == 0 && party.runs) pages = std::max(pages, party.needs.least_pages);
    if (party.priority == Priority::primary) pages = std::max(pages, party.reserved);
    return pages;
}

uint64_t ResidencyModel::workspaces() const {
    uint64_t pages = 0;
    for (const Party& party : parties_)
        if (party.times_guest > 0) pages += party.terms.workspace_pages;
    return pages;
}

// Of the runtimes that may give, returns the one that is used furthest in the future, and the first among equals.
std::optional<size_t> ResidencyModel::first_to_give(const std::vector<bool>& may, uint64_t now_ns) const {
    std::optional<size_t> first;
    for (size_t i = 0; i < parties_.size(); i++) {
        if (!may[i]) continue;
        if (!first || until_next_step(parties_[i], now_ns) > until_next_step(parties_[*first], now_ns)) first = i;
    }
    return first;
}

// SECONDARY reservations hold as long as there is room. Otherwise the reservation of the runtime that is used furthest
// in the future gives way first. Returns nothing if there is still too little room without them.
std::optional<ResidencyModel::Certain> ResidencyModel::certain(uint64_t total, uint64_t now_ns) const {
    Certain result;
    uint64_t all = workspaces();
    std::vector<bool> may_give;
    for (const Party& party : parties_) {
        result.pages.push_back(std::max(firm(party), party.reserved));
        all += result.pages.back();
        may_give.push_back(party.priority == Priority::secondary);
    }
    while (all > total) {
        const std::optional<size_t> i = first_to_give(may_give, now_ns);
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
uint64_t ResidencyModel::within_reach() const {
    const uint64_t left = std::min(total_, present_);
    return left > lost_ ? left - lost_ : 0;
}

// Certain pages are there in any case.
uint64_t ResidencyModel::divisible(const Certain& certain) const {
    return std::max(total_ - certain.headroom, within_reach());
}

// Guests take no part.
std::vector<policy::Stake> ResidencyModel::stakes(const Certain& certain, uint64_t now_ns) const {
    double most_often = 0;
    for (const Party& party : parties_) most_often = std::max(most_often, rate(party, now_ns));
    std::vector<policy::Stake> result(parties_.size());
    for (size_t i = 0; i < parties_.size(); i++) {
        const Party& party = parties_[i];
        if (party.times_guest > 0) continue;
        result[i].floor_pages = result[i].most_pages = certain.pages[i];
        if (party.runs) result[i].most_pages = std::max(certain.pages[i], party.needs.wanted_pages);
        // A new runtime counts as used as often as the busiest runtime.
        result[i].steps_per_second = rate(party, now_ns) > 0 ? rate(party, now_ns) : most_often > 0 ? most_often : 1;
        result[i].curve = party.needs.curve;
    }
    return result;
}

std::vector<uint64_t> ResidencyModel::best_division(const Certain& certain, uint64_t now_ns) const {
    return *policy::divide_by_value(divisible(certain), stakes(certain, now_ns));
}

bool ResidencyModel::division_is_possible(const Certain& certain) const {
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

void ResidencyModel::divide_anew(const Certain& certain, uint64_t now_ns) {
    const std::vector<uint64_t> best = best_division(certain, now_ns);
    for (size_t i = 0; i < parties_.size(); i++) {
        parties_[i].division = best[i];
        parties_[i].rate_then = rate(parties_[i], now_ns);
    }
}

// Finds the shares: the division, less the pages that guests and their workspaces take from it. Pages that are used
// furthest in the future are taken first.
void ResidencyModel::hand_out(const Certain& certain, uint64_t now_ns) {
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
        holders[i] = {Priority::none, until_next_step(party, now_ns), party.share - certain.pages[i],
                      party.holding.parts};
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
        const std::optional<size_t> i = first_to_give(may_give, now_ns);
        if (!i) break;
        may_give[*i] = false;
        const uint64_t more = std::min(wanted, parties_[*i].share - certain.pages[*i]);
        parties_[*i].share -= more;
        wanted -= more;
    }
    headroom_ = certain.headroom;
}

// Protected pages are certain as far as they were not promised to other runtimes before.
void ResidencyModel::protect_what_can_be(uint64_t now_ns) {
    for (size_t i = 0; i < parties_.size(); i++) {
        if (parties_[i].kept >= parties_[i].holding.kept_pages) continue;
        const std::optional<Certain> now = certain(total_, now_ns);
        if (!now) return;
        uint64_t others = workspaces();
        for (size_t j = 0; j < parties_.size(); j++)
            if (j != i) others += now->pages[j];
        parties_[i].kept = std::max(parties_[i].kept, std::min(parties_[i].holding.kept_pages, total_ - others));
    }
}

void ResidencyModel::update(uint64_t now_ns, bool anew) {
    protect_what_can_be(now_ns);
    const std::optional<Certain> now = certain(total_, now_ns);
    if (!now) return;  // break_of_a_promise() reports this
    if (anew || !division_is_possible(*now)) divide_anew(*now, now_ns);
    hand_out(*now, now_ns);
}

// The part of the budget that other processes have left. Certain pages are there in any case.
uint64_t ResidencyModel::there() const { return std::max(total_ - headroom_, within_reach()); }

// The pages that no other runtime may hold.
uint64_t ResidencyModel::free_for(const Party& self) const {
    uint64_t taken = workspaces();
    for (const Party& party : parties_)
        if (&party != &self) taken += party.granted;
    return there() > taken ? there() - taken : 0;
}

sh_status ResidencyModel::ask(Party& party, const Record& record) {
    const Party before = party;
    party.needs = *record.needs;
    party.runs = true;
    if (certain(total_, record.now_ns)) {
        update(record.now_ns, party.times_guest == 0);
        return SH_OK;
    }
    party.needs = before.needs;
    party.runs = before.runs;
    update(record.now_ns, true);
    counts_.refused_asks++;
    return SH_ERROR_BUDGET;
}

// A runtime gets its share as far as the share is free. It may keep the pages that it holds up to its share.
sh_status ResidencyModel::grant(Party& party, const Record& record, std::string* wrong) {
    const uint64_t pages = std::min({party.share, party.needs.wanted_pages, std::max(free_for(party), party.granted)});
    if (pages != record.pages)
        *wrong += "grants " + std::to_string(record.pages) + " pages, not " + std::to_string(pages) + "; ";
    if (pages < party.needs.least_pages) {
        counts_.refused_grants++;
        return party.share < party.needs.least_pages ? SH_ERROR_BUDGET
                                                     : SH_ERROR_BUSY;  // busy: others have still to give back
    }
    counts_.short_grants += pages < std::min(party.share, party.needs.wanted_pages);
    // No page of a PRIMARY reservation is taken for other runtimes once it is held.
    if (party.priority == Priority::primary &&
        pages < std::min({party.granted, party.reserved, party.needs.wanted_pages}))
        *wrong += "takes what is reserved for it; ";
    counts_.gave_up_under_reservation += party.priority != Priority::none && pages < party.granted;
    party.granted = std::max(party.granted, pages);
    party.agreed = pages;
    return SH_OK;
}

// A PRIMARY reservation must fit beside all firm pages. A SECONDARY reservation must also fit beside other SECONDARY
// reservations.
sh_status ResidencyModel::reserve(Party& party, const Record& record) {
    Party as_reserved = party;
    as_reserved.reserved = record.pages;
    as_reserved.priority = Priority::primary;
    uint64_t all = workspaces() + firm(as_reserved);
    for (const Party& other : parties_) {
        if (&other == &party) continue;
        all += record.priority == Priority::secondary ? std::max(firm(other), other.reserved) : firm(other);
    }
    if (all > there()) {
        counts_.refused_reservations++;
        return SH_ERROR_BUDGET;
    }
    party.reserved = record.pages;
    party.priority = record.priority;
    update(record.now_ns, true);
    (record.priority == Priority::primary ? counts_.primary : counts_.secondary)++;
    return SH_OK;
}

// A guest gets pages that no runtime has for certain, and the pages that it has for certain itself, whether it runs or
// not.
sh_status ResidencyModel::begin_guest(Party& party, const Record& record) {
    if (party.times_guest > 0) {
        if (record.terms->asked_pages > party.terms.pages ||
            record.terms->workspace_pages > party.terms.workspace_pages)
            return SH_ERROR_BUDGET;
        party.times_guest++;
        return SH_OK;
    }
    const core::GuestTerms& terms = *record.terms;
    if (terms.pages == 0 && terms.workspace_pages == 0) return SH_ERROR_INVALID_STATE;  // nothing to be let in for
    const bool ran = std::exchange(party.runs, false);
    const Certain others = *certain(there(), record.now_ns);
    party.runs = ran;
    const uint64_t own = others.pages[index_of(party.tenant)];
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
    update(record.now_ns, false);
    return SH_OK;
}

sh_status ResidencyModel::set_total(const Record& record) {
    if (!certain(record.pages, record.now_ns)) {
        counts_.refused_totals++;
        return SH_ERROR_BUDGET;
    }
    if (record.pages < total_) allowed_excess_ += total_ - record.pages;
    (record.pages < total_ ? counts_.lowered : counts_.raised)++;
    total_ = record.pages;
    update(record.now_ns, true);
    return SH_OK;
}

void ResidencyModel::note_step(Party& party, uint64_t now_ns) {
    if (party.last_step_ns && now_ns > *party.last_step_ns) {
        const double latest = static_cast<double>(now_ns - *party.last_step_ns);
        party.period_ns = party.period_ns > 0 ? party.period_ns + kWeightOfLatest * (latest - party.period_ns) : latest;
    }
    party.last_step_ns = now_ns;
    if (parties_.size() < 2) return;
    bool notable = false;
    for (const Party& other : parties_) {
        const double now = rate(other, now_ns);
        if (now > other.rate_then * kNotable || other.rate_then > now * kNotable) notable = true;
    }
    if (!notable) return;
    const std::optional<Certain> now = certain(total_, now_ns);
    if (!now) return;
    std::vector<uint64_t> present;
    for (const Party& other : parties_) present.push_back(other.division);
    if (!policy::worth_changing(stakes(*now, now_ns), present, best_division(*now, now_ns))) return;
    counts_.redivided_by_use++;
    divide_anew(*now, now_ns);
    hand_out(*now, now_ns);
}

void ResidencyModel::settle(Party& party, const core::Holding& holding, std::string* wrong) {
    if (holding.pages > party.granted) *wrong += "holds more than it was granted; ";
    if (holding.kept_pages > holding.pages) *wrong += "protects more than it holds; ";
    // The reservation covers at most the pages that the runtime held and was allowed to keep. A reservation that begins
    // while the runtime gives pages up covers fewer pages.
    if (party.priority == Priority::primary &&
        holding.pages < std::min({party.holding.pages, party.agreed, party.reserved, party.needs.wanted_pages}))
        *wrong += "PRIMARY eviction: it has given up what is reserved for it; ";
    party.granted = party.agreed = holding.pages;
    party.holding = holding;
    party.kept = std::min(party.kept, holding.kept_pages);
}

sh_status ResidencyModel::apply(const Record& record, std::string* wrong) {
    Party* const party = find(record.tenant);
    if (record.change != Change::join && record.change != Change::total && record.change != Change::present && !party) {
        *wrong += "names a tenant that is not there; ";
        return record.status;
    }
    switch (record.change) {
        case Change::join:
            parties_.emplace_back();
            parties_.back().tenant = record.tenant;
            parties_.back().name = record.name;
            break;
        case Change::leave:
            parties_.erase(parties_.begin() + static_cast<ptrdiff_t>(index_of(record.tenant)));
            lost_ += record.pages;
            update(record.now_ns, true);
            break;
        case Change::ask:
            return ask(*party, record);
        case Change::grant:
            return grant(*party, record, wrong);
        case Change::settle:
            settle(*party, *record.holding, wrong);
            update(record.now_ns, false);
            break;
        case Change::withdraw:
            settle(*party, {}, wrong);
            party->runs = false;
            update(record.now_ns, party->times_guest == 0);
            break;
        case Change::keep: {
            const bool ends =
                record.pages < party->kept && party->division <= party->kept;  // it was what decided the share
            party->holding.kept_pages = record.pages;
            party->kept = std::min(party->kept, record.pages);
            update(record.now_ns, ends);
            break;
        }
        case Change::step:
            note_step(*party, record.now_ns);
            break;
        case Change::reserve:
            return reserve(*party, record);
        case Change::release:
            party->reserved = 0;
            party->priority = Priority::none;
            update(record.now_ns, true);
            break;
        case Change::guest:
            return begin_guest(*party, record);
        case Change::guest_end:
            if (--party->times_guest > 0) break;
            party->terms = {};
            party->runs = false;
            party->division = 0;
            update(record.now_ns, false);
            break;
        case Change::total:
            return set_total(record);
        case Change::present:
            counts_.present++;
            if (std::min(record.pages, total_) == std::min(std::exchange(present_, record.pages), total_)) break;
            update(record.now_ns, true);
            break;
    }
    return SH_OK;
}

std::string ResidencyModel::follow(const Record& record) {
    std::string wrong;
    const sh_status status = apply(record, &wrong);
    if (status != record.status)
        wrong += "the status is " + std::string(sh_status_string(record.status)) + ", not " + sh_status_string(status) +
                 "; ";
    wrong += compare(record);
    wrong += break_of_a_promise(record);
    counts_.records++;
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

}  // namespace stagehand::test
