// The differences between the plain model and the arbiter, and the broken promises, as text.
#include <algorithm>
#include <sstream>

#include "residency_model.h"

namespace stagehand::test {

using Change = Arbiter::Change;
using policy::Priority;

std::string ResidencyModel::compare(const Record& record) const {
    std::ostringstream wrong;
    if (record.standings.size() != parties_.size()) {
        wrong << record.standings.size() << " tenants, not " << parties_.size() << "; ";
        return wrong.str();
    }
    const auto differ = [&](const std::string& what, uint64_t there, uint64_t here) {
        if (there != here) wrong << what << " is " << there << ", not " << here << "; ";
    };
    Arbiter::Figures figures;
    figures.headroom = there() - (total_ - headroom_);
    figures.workspaces = workspaces();
    figures.guests = workspaces();
    for (size_t i = 0; i < parties_.size(); i++) {
        const Party& party = parties_[i];
        const Arbiter::Standing& standing = record.standings[i];
        const uint64_t guest = party.times_guest > 0 ? party.terms.pages : 0;
        if (standing.tenant != party.tenant) wrong << "another tenant in place of " << party.name << "; ";
        differ(party.name + "'s share", standing.share, party.share);
        differ(party.name + "'s granted", standing.granted, party.granted);
        differ(party.name + "'s kept", standing.kept, party.kept);
        differ(party.name + "'s reserved", standing.reserved, party.in_force);
        differ(party.name + "'s guest", standing.guest, guest);
        figures.reserved += party.in_force;
        figures.kept += party.kept;
        figures.guests += guest;
    }
    differ("headroom", record.figures.headroom, figures.headroom);
    differ("reserved in all", record.figures.reserved, figures.reserved);
    differ("guests in all", record.figures.guests, figures.guests);
    differ("workspaces", record.figures.workspaces, figures.workspaces);
    differ("kept in all", record.figures.kept, figures.kept);
    return wrong.str();
}

// Checks what must hold at any instant, from the log alone.
std::string ResidencyModel::break_of_a_promise(const Record& record) const {
    std::ostringstream wrong;
    uint64_t granted = record.figures.workspaces, shares = record.figures.workspaces,
             certain = record.figures.workspaces;
    bool gave_way = false;
    for (size_t i = 0; i < record.standings.size() && i < parties_.size(); i++) {
        const Arbiter::Standing& standing = record.standings[i];
        const Party& party = parties_[i];
        granted += standing.granted;
        shares += standing.share;
        certain += std::max({standing.kept, standing.reserved, firm(party)});
        gave_way = gave_way || standing.reserved < party.reserved;
        if (standing.granted < standing.kept) wrong << party.name << " may hold less than is protected; ";
        if (standing.share < standing.kept) wrong << party.name << "'s share is less than is protected; ";
        if (standing.share < standing.reserved) wrong << party.name << "'s share is less than is reserved; ";
        if (standing.share < standing.guest) wrong << party.name << "'s share is less than it came in with; ";
        if (party.priority == Priority::primary && standing.reserved != party.reserved)
            wrong << party.name << "'s PRIMARY reservation is not in force; ";
        if (standing.reserved > party.reserved) wrong << party.name << " has more in force than was reserved; ";
    }
    if (record.figures.headroom > total_) wrong << "the headroom is more than the budget; ";
    if (certain > total_)
        wrong << "what is certain is more than the budget: " << certain << "; ";
    else if (certain + record.figures.headroom != there())
        wrong << "what is certain and the headroom are " << certain + record.figures.headroom
              << ", not what there is; ";
    if (shares > total_) wrong << "the shares are more than the budget: " << shares << "; ";
    if (gave_way && headroom_) wrong << "a SECONDARY reservation has given way although there is headroom; ";
    // A lowered budget, and a guest's workspace, wait for steps and views to end. Memory beyond the budget only shrinks
    // meanwhile.
    if (granted > total_ + allowed_excess_)
        wrong << granted << " pages may be held, beyond the budget by " << granted - total_ << ", at most "
              << allowed_excess_ << " are left from before; ";
    return wrong.str();
}

std::string ResidencyModel::describe() const {
    std::ostringstream text;
    text << "  budget " << total_ << ", there " << static_cast<int64_t>(present_) << ", headroom " << headroom_ << "\n";
    for (const Party& party : parties_) {
        text << "  " << party.name << ": share " << party.share << ", granted " << party.granted << ", division "
             << party.division << ", kept " << party.kept << " of " << party.holding.kept_pages << ", reserved "
             << party.in_force << " of " << party.reserved << " (priority " << static_cast<int>(party.priority)
             << "), guest " << party.times_guest << " x " << party.terms.pages << " + " << party.terms.workspace_pages
             << (party.runs ? ", runs" : ", does not run") << ", needs " << party.needs.least_pages << " to "
             << party.needs.wanted_pages << ", period " << party.period_ns << "\n";
    }
    return text.str();
}

std::string text_of(const Record& record) {
    static const char* const names[] = {"join", "leave",   "ask",     "grant", "settle",    "withdraw", "keep",
                                        "step", "reserve", "release", "guest", "guest_end", "total",    "present"};
    std::ostringstream text;
    text << record.number << " " << names[static_cast<size_t>(record.change)] << " at " << record.now_ns << ": "
         << sh_status_string(record.status) << ", pages " << static_cast<int64_t>(record.pages);
    if (record.needs) text << ", needs " << record.needs->least_pages << " to " << record.needs->wanted_pages;
    if (record.holding) text << ", holds " << record.holding->pages << ", protected " << record.holding->kept_pages;
    if (record.terms)
        text << ", guest " << record.terms->least_pages << " to " << record.terms->pages << " and "
             << record.terms->workspace_pages << (record.terms->shrink ? ", shrinks" : "");
    if (record.change == Change::reserve) text << ", priority " << static_cast<int>(record.priority);
    text << "; headroom " << record.figures.headroom << ";";
    for (const Arbiter::Standing& standing : record.standings)
        text << (standing.tenant == record.tenant ? " [" : " (") << standing.share << "/" << standing.granted << " k"
             << standing.kept << " r" << standing.reserved << " g" << standing.guest
             << (standing.tenant == record.tenant ? "]" : ")");
    return text.str();
}

}  // namespace stagehand::test
