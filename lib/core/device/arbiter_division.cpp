// How the arbiter finds everybody's share.
#include <algorithm>
#include <limits>
#include <numeric>

#include "base/log.h"
#include "core/device/arbiter.h"

namespace stagehand::core {
namespace {

// The division is looked at again when somebody is used so many times more or less often than when it was made.
constexpr double kShift = 1.5;

uint64_t sum_of(std::span<const uint64_t> pages) { return std::accumulate(pages.begin(), pages.end(), uint64_t{0}); }

}  // namespace

// When its next step is expected: as regularly as so far, or, when it is late, after as long again as it has been away.
double Arbiter::wait_for_step(const Member& m, uint64_t now_ns) const {
    if (!m.stepped) return std::numeric_limits<double>::infinity();
    const double away = static_cast<double>(now_ns - std::min(now_ns, m.last_step_ns));
    return away < m.period_ns ? m.period_ns - away : away;
}

// Who is away longer than usual is used less often than it was. Of who has made one step only, nobody knows how often it will: as often
// as anybody at first, then less the longer it is away.
double Arbiter::steps_per_second(const Member& m, uint64_t now_ns) const {
    const auto known = [&](const Member& other) {
        return 1e9 / std::max(other.period_ns, static_cast<double>(now_ns - std::min(now_ns, other.last_step_ns)));
    };
    if (m.period_ns > 0) return known(m);
    double busiest = 0;
    for (const Member& other : members_)
        if (other.period_ns > 0) busiest = std::max(busiest, known(other));
    if (!m.stepped || busiest == 0 || now_ns <= m.last_step_ns) return 0;
    return std::min(busiest, 1e9 / static_cast<double>(now_ns - m.last_step_ns));
}

std::vector<policy::Claim> Arbiter::claims(uint64_t now_ns) const {
    std::vector<policy::Claim> result;
    for (const Member& m : members_) {
        policy::Claim claim;
        claim.runs = m.runs;
        claim.guest = m.guest_depth > 0;
        claim.least_pages = m.needs.least_pages;
        claim.wanted_pages = m.needs.wanted_pages;
        claim.kept_pages = m.kept;
        claim.reserved_pages = m.reserved;
        claim.priority = m.priority;
        claim.guest_pages = m.guest.pages;
        claim.workspace_pages = m.guest.workspace_pages;
        claim.steps_per_second = steps_per_second(m, now_ns);
        claim.next_step_ns = wait_for_step(m, now_ns);
        claim.curve = m.needs.curve;
        claim.parts = m.holding.parts;
        result.push_back(claim);
    }
    return result;
}

// What can be divided: the budget as far as it is within reach, and in any case what is held for certain.
uint64_t Arbiter::usable(std::span<const policy::Claim> claims, const policy::Floors& floors) const {
    uint64_t certain = sum_of(floors.pages);
    for (const policy::Claim& claim : claims) certain += claim.guest ? claim.workspace_pages : 0;
    return std::max(certain, within_reach());
}

bool Arbiter::still_right(std::span<const policy::Claim> claims, const policy::Floors& floors, uint64_t pages) const {
    uint64_t all = 0;
    for (size_t i = 0; i < members_.size(); i++) {
        if (claims[i].guest) continue;
        const uint64_t most = std::max(floors.pages[i], claims[i].runs ? claims[i].wanted_pages : 0);
        if (members_[i].divided < floors.pages[i] || members_[i].divided > most) return false;
        all += members_[i].divided;
    }
    return all <= pages;
}

void Arbiter::take_over(std::span<const policy::Claim> claims, const policy::Floors& floors, uint64_t pages) {
    std::vector<uint64_t> divided;
    for (size_t i = 0; i < members_.size(); i++) divided.push_back(claims[i].guest ? 0 : members_[i].divided);
    const std::vector<uint64_t> shares = policy::lend(pages, divided, claims, floors);
    for (size_t i = 0; i < members_.size(); i++) {
        Member& m = members_[i];
        m.share = shares[i];
        if (floors.reserved[i] < std::min(m.reserved, m.reserved_in_force))
            log_line(SH_LOG_WARNING, "%s: of the %s reserved for it, %s are given up: nothing else is left", m.tenant->tenant_name().c_str(),
                     bytes(m.reserved).c_str(), bytes(m.reserved - floors.reserved[i]).c_str());
        m.reserved_in_force = floors.reserved[i];
    }
    headroom_ = floors.headroom_pages;
}

// Protection reaches as far as nothing else holds for certain.
void Arbiter::raise_kept(uint64_t now_ns) {
    for (size_t i = 0; i < members_.size(); i++) {
        Member& m = members_[i];
        if (m.kept >= m.holding.kept_pages) continue;
        const auto floors = policy::floors(total_, claims(now_ns));
        if (!floors) return;
        const uint64_t room = floors->headroom_pages + floors->pages[i];
        m.kept = std::max(m.kept, std::min(m.holding.kept_pages, room));
    }
}

// Finds everybody's share; false, and nothing changes, when what they hold for certain does not fit. Without `anew` the division stays
// as it is, as long as it is possible.
bool Arbiter::divide(uint64_t now_ns, bool anew) {
    raise_kept(now_ns);
    const std::vector<policy::Claim> all = claims(now_ns);
    const auto floors = policy::floors(total_, all);
    if (!floors) return false;
    const uint64_t pages = usable(all, *floors);
    if (anew || !still_right(all, *floors, pages)) {
        const std::vector<uint64_t> divided = policy::divide(pages, all, *floors);
        for (size_t i = 0; i < members_.size(); i++) {
            members_[i].divided = divided[i];
            members_[i].divided_rate = all[i].steps_per_second;
        }
    }
    take_over(all, *floors, pages);
    return true;
}

void Arbiter::reconsider(uint64_t now_ns) {
    if (members_.size() < 2) return;
    const std::vector<policy::Claim> all = claims(now_ns);
    bool shifted = false;
    for (size_t i = 0; i < all.size(); i++) {
        const double now = all[i].steps_per_second, then = members_[i].divided_rate;
        shifted = shifted || now > then * kShift || then > now * kShift;
    }
    const auto floors = shifted ? policy::floors(total_, all) : std::nullopt;
    if (!floors) return;
    const uint64_t pages = usable(all, *floors);
    const std::vector<uint64_t> divided = policy::divide(pages, all, *floors);
    std::vector<uint64_t> now;
    for (const Member& m : members_) now.push_back(m.divided);
    if (!policy::worth_changing(policy::stakes(all, *floors), now, divided)) return;
    for (size_t i = 0; i < members_.size(); i++) {
        members_[i].divided = divided[i];
        members_[i].divided_rate = all[i].steps_per_second;
    }
    take_over(all, *floors, pages);
}

}  // namespace stagehand::core
