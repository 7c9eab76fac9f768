// The arbiter's division of the budget into shares.
#include <algorithm>
#include <limits>
#include <numeric>
#include <utility>

#include "base/log.h"
#include "base/no_throw.h"
#include "core/device/arbiter.h"

namespace stagehand::core {
namespace {

// The weight of the latest step in the smoothed time between steps.
constexpr double kLatest = 0.25;

// A new division is considered when a tenant is used this many times more or less often than at the last division.
constexpr double kShift = 1.5;

uint64_t sum_of(std::span<const uint64_t> pages) { return std::accumulate(pages.begin(), pages.end(), uint64_t{0}); }

}  // namespace

// The time until the tenant's next step. A tenant that is not late is expected at its usual interval. A tenant that is
// late is expected after as long again as it has been away.
double Arbiter::wait_for_step(const Member& m, uint64_t now_ns) const {
    if (!m.stepped) return std::numeric_limits<double>::infinity();
    const double away = static_cast<double>(now_ns - std::min(now_ns, m.last_step_ns));
    return away < m.period_ns ? m.period_ns - away : away;
}

// A tenant that is away longer than usual is used less often than before. The rate of a tenant with only one step is
// unknown. It counts as high as the highest rate at first, and lower the longer the tenant is away.
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

// The pages that can be divided: the budget within reach, and at least the pages that are claimed for certain.
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

// All that may throw comes first, so that either all shares change or none. `divided` includes guests. `anew`:
// `divided` is a new division.
void Arbiter::take_over(std::span<const policy::Claim> claims, const policy::Floors& floors, uint64_t pages,
                        std::vector<uint64_t> divided, bool anew) {
    std::vector<uint64_t> to_lend = divided;
    for (size_t i = 0; i < members_.size(); i++)
        if (claims[i].guest) to_lend[i] = 0;
    const std::vector<uint64_t> shares = policy::lend(pages, to_lend, claims, floors);
    for (size_t i = 0; i < members_.size(); i++) {
        Member& m = members_[i];
        m.kept = claims[i].kept_pages;
        m.divided = divided[i];
        if (anew) m.divided_rate = claims[i].steps_per_second;
        m.share = shares[i];
        if (floors.reserved[i] < std::min(m.reserved, m.reserved_in_force)) tell_of_given_up(m, floors.reserved[i]);
        m.reserved_in_force = floors.reserved[i];
    }
    headroom_ = floors.headroom_pages;
    overdue_ = overdue_ && !anew;
}

void Arbiter::tell_of_given_up(const Member& m, uint64_t in_force) const noexcept {
    (void)no_throw([&] {
        log_line(SH_LOG_WARNING,
                 "%s: of the %s that were reserved for it, %s are given up because no other memory is left",
                 m.tenant->tenant_name().c_str(), bytes(m.reserved).c_str(), bytes(m.reserved - in_force).c_str());
        return Status();
    }).ok();
}

// Raises the protected pages as far as no other tenant has a certain claim to the memory.
void Arbiter::raise_kept(std::span<policy::Claim> claims) const {
    for (size_t i = 0; i < members_.size(); i++) {
        const uint64_t wanted = members_[i].holding.kept_pages;
        if (claims[i].kept_pages >= wanted) continue;
        const auto floors = policy::floors(total_, claims);
        if (!floors) return;
        const uint64_t room = floors->headroom_pages + floors->pages[i];
        claims[i].kept_pages = std::max(claims[i].kept_pages, std::min(wanted, room));
    }
}

// Finds all shares. Returns false without any change if the certain claims do not fit. Without `anew` the present
// division is kept as long as it is possible.
bool Arbiter::divide(uint64_t now_ns, bool anew) {
    std::vector<policy::Claim> all = claims(now_ns);
    raise_kept(all);
    const auto floors = policy::floors(total_, all);
    if (!floors) return false;
    const uint64_t pages = usable(all, *floors);
    const bool again = anew || overdue_ || !still_right(all, *floors, pages);
    std::vector<uint64_t> divided;
    if (again)
        divided = policy::divide(pages, all, *floors);
    else
        for (const Member& m : members_) divided.push_back(m.divided);
    take_over(all, *floors, pages, std::move(divided), again);
    return true;
}

void Arbiter::divide_now_or_later(uint64_t now_ns, bool anew) noexcept {
    if (!no_throw([&] { return divide(now_ns, anew), Status(); }).ok()) overdue_ = true;
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
    std::vector<uint64_t> divided = policy::divide(pages, all, *floors);
    std::vector<uint64_t> now;
    for (const Member& m : members_) now.push_back(m.divided);
    if (!policy::worth_changing(policy::stakes(all, *floors), now, divided)) return;
    take_over(all, *floors, pages, std::move(divided), true);
}

void Arbiter::note_step(Tenant& tenant) noexcept {
    std::lock_guard lock(mutex_);
    Member& self = member(tenant);
    const uint64_t now = clock_();
    if (self.stepped && now > self.last_step_ns) {
        const double latest = static_cast<double>(now - self.last_step_ns);
        self.period_ns = self.period_ns > 0 ? self.period_ns + kLatest * (latest - self.period_ns) : latest;
    }
    self.stepped = true;
    self.last_step_ns = now;
    (void)no_throw([&] { return reconsider(now), Status(); }).ok();  // without host memory the division stays as it is
    write({.change = Change::step, .tenant = &tenant, .now_ns = now});
}

}  // namespace stagehand::core
