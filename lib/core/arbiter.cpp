#include "core/arbiter.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "base/log.h"

namespace stagehand::core {
namespace {

// A tenant that is pressed asks the arbiter again: it must not press others in turn.
thread_local bool pressing_here = false;

// The division is looked at again when somebody is used so many times more or less often than when it was made.
constexpr double kShift = 1.5;
// Weight of the latest step in the smoothed time between steps.
constexpr double kLatest = 0.25;

uint64_t sum_of(std::span<const uint64_t> pages) { return std::accumulate(pages.begin(), pages.end(), uint64_t{0}); }

}  // namespace

Arbiter::Member& Arbiter::member(const Tenant& tenant) {
    return *std::find_if(members_.begin(), members_.end(), [&](const Member& m) { return m.tenant == &tenant; });
}

const Arbiter::Member& Arbiter::member(const Tenant& tenant) const { return const_cast<Arbiter*>(this)->member(tenant); }

void Arbiter::join(Tenant& tenant) {
    std::lock_guard lock(mutex_);
    members_.emplace_back();
    members_.back().tenant = &tenant;
    write({.change = Change::join, .tenant = &tenant});
}

void Arbiter::leave(Tenant& tenant) {
    std::lock_guard pressing(pressing_);
    std::lock_guard lock(mutex_);
    std::erase_if(members_, [&](const Member& m) { return m.tenant == &tenant; });
    const uint64_t now = clock_();
    divide(now, true);
    write({.change = Change::leave, .tenant = &tenant, .now_ns = now});
}

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

// What can be divided: the budget as far as it is there, and in any case what is held for certain.
uint64_t Arbiter::usable(std::span<const policy::Claim> claims, const policy::Floors& floors) const {
    uint64_t certain = sum_of(floors.pages);
    for (const policy::Claim& claim : claims) certain += claim.guest ? claim.workspace_pages : 0;
    return std::max(certain, std::min(total_, present_));
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
            log_line(SH_LOG_WARNING, "%s: of the %llu pages reserved for it, %llu are given up: nothing else is left", m.tenant->tenant_name().c_str(),
                     static_cast<unsigned long long>(m.reserved), static_cast<unsigned long long>(m.reserved - floors.reserved[i]));
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

uint64_t Arbiter::available(const Member& self) const {
    uint64_t taken = 0;
    for (const Member& m : members_) {
        if (&m != &self) taken += m.granted;
        if (m.guest_depth) taken += m.guest.workspace_pages;
    }
    return taken < total_ ? total_ - taken : 0;
}

void Arbiter::press(const std::function<bool()>& enough, const Tenant* except) {
    if (pressing_here) return;
    std::lock_guard pressing(pressing_);
    std::vector<std::pair<double, Tenant*>> over;
    {
        std::lock_guard lock(mutex_);
        const uint64_t now = clock_();
        for (const Member& m : members_)
            if (m.tenant != except && m.granted > m.share) over.emplace_back(wait_for_step(m, now), m.tenant);
    }
    std::stable_sort(over.begin(), over.end(), [](const auto& a, const auto& b) { return a.first > b.first; });
    for (const auto& [wait, tenant] : over) {
        if (enough && enough()) return;
        pressing_here = true;
        tenant->try_to_change();
        pressing_here = false;
        const Standing after = standing(*tenant);
        if (after.granted > after.share) tenant->feel_pressure(after.granted - after.share);
    }
}

void Arbiter::make_room(const Tenant& tenant) {
    press([&] {
        std::lock_guard lock(mutex_);
        return available(member(tenant)) >= member(tenant).share;
    }, &tenant);
}

std::string Arbiter::claimants(const Member* except) const {
    std::string text;
    const auto add = [&](const Member& m, const char* how, uint64_t pages) {
        if (pages) text += (text.empty() ? "; " : ", ") + m.tenant->tenant_name() + how + std::to_string(pages) + " pages";
    };
    for (const Member& m : members_) {
        if (&m == except) continue;
        add(m, " holds ", m.granted);
        add(m, " has reserved ", m.reserved_in_force);
        if (m.guest_depth) add(m, " is a guest with ", m.guest.pages + m.guest.workspace_pages);
    }
    return text;
}

Status Arbiter::refuse(const Member& self, uint64_t least_pages) const {
    return Status(SH_ERROR_BUDGET, std::to_string(least_pages) + " pages are needed at least, of the device's " + std::to_string(total_) +
                                       " there are " + std::to_string(available(self)) + claimants(&self));
}

Status Arbiter::request(Tenant& tenant, const Needs& needs, bool press_others, uint64_t* out_pages) {
    std::unique_lock lock(mutex_);
    Needs before = std::exchange(member(tenant).needs, needs);
    const bool ran = std::exchange(member(tenant).runs, true);
    uint64_t now = clock_();
    bool fits = divide(now, member(tenant).guest_depth == 0);
    if (!fits) {
        const Status status = refuse(member(tenant), needs.least_pages);
        member(tenant).needs = std::move(before);
        member(tenant).runs = ran;
        divide(now, true);
        write({.change = Change::ask, .tenant = &tenant, .now_ns = now, .needs = &needs, .status = status.code()});
        return status;
    }
    write({.change = Change::ask, .tenant = &tenant, .now_ns = now, .needs = &needs});
    const auto enough = [&] { return available(member(tenant)) >= std::min(member(tenant).share, needs.wanted_pages); };
    if (press_others && !pressing_here && !enough()) {
        lock.unlock();
        press([&] {
            std::lock_guard again(mutex_);
            return enough();
        }, &tenant);
        lock.lock();
    }
    Member& self = member(tenant);
    // What it holds it may go on holding up to its share, whatever others hold beyond theirs: else two that have to shrink would
    // wait for each other.
    const uint64_t pages = std::min({self.share, std::max(available(self), self.granted), needs.wanted_pages});
    if (pages < needs.least_pages) {
        const Status status = refuse(self, needs.least_pages);   // the needs stay known: others give back at their next edge
        write({.change = Change::grant, .tenant = &tenant, .pages = pages, .status = status.code()});
        return status;
    }
    self.granted = std::max(self.granted, pages);   // what it holds counts until it says that it holds less
    write({.change = Change::grant, .tenant = &tenant, .pages = pages});
    *out_pages = pages;
    return Status();
}

void Arbiter::settle(Tenant& tenant, Holding holding) {
    std::lock_guard lock(mutex_);
    Member& self = member(tenant);
    self.granted = holding.pages;
    self.kept = std::min(self.kept, holding.kept_pages);
    self.holding = std::move(holding);
    const uint64_t now = clock_();
    divide(now, false);
    write({.change = Change::settle, .tenant = &tenant, .now_ns = now, .holding = &self.holding});
}

void Arbiter::withdraw(Tenant& tenant) {
    std::lock_guard lock(mutex_);
    Member& self = member(tenant);
    self.granted = self.kept = 0;
    self.holding = {};
    self.runs = false;
    const uint64_t now = clock_();
    divide(now, self.guest_depth == 0);
    write({.change = Change::withdraw, .tenant = &tenant, .now_ns = now});
}

void Arbiter::keep(Tenant& tenant, uint64_t pages) {
    std::lock_guard lock(mutex_);
    Member& self = member(tenant);
    self.holding.kept_pages = pages;
    self.kept = std::min(self.kept, pages);
    const uint64_t now = clock_();
    divide(now, false);
    write({.change = Change::keep, .tenant = &tenant, .now_ns = now, .pages = pages});
}

void Arbiter::note_step(Tenant& tenant) {
    std::lock_guard lock(mutex_);
    Member& self = member(tenant);
    const uint64_t now = clock_();
    if (self.stepped && now > self.last_step_ns) {
        const double latest = static_cast<double>(now - self.last_step_ns);
        self.period_ns = self.period_ns > 0 ? self.period_ns + kLatest * (latest - self.period_ns) : latest;
    }
    self.stepped = true;
    self.last_step_ns = now;
    reconsider(now);
    write({.change = Change::step, .tenant = &tenant, .now_ns = now});
}

bool Arbiter::wants_change(const Tenant& tenant) const {
    std::lock_guard lock(mutex_);
    const Member& self = member(tenant);
    if (!self.runs) return false;
    const uint64_t share = std::min(self.share, self.needs.wanted_pages);
    if (share <= self.granted) return share < self.granted;
    // There is more to be had, or it can be asked for.
    return available(self) > self.granted ||
           std::any_of(members_.begin(), members_.end(), [&](const Member& m) { return &m != &self && m.granted > m.share; });
}

Status Arbiter::reserve(Tenant& tenant, uint64_t pages, policy::Priority priority) {
    std::lock_guard lock(mutex_);
    Member& self = member(tenant);
    const uint64_t before = std::exchange(self.reserved, pages);
    const policy::Priority priority_before = std::exchange(self.priority, priority);
    const uint64_t now = clock_();
    Status status;
    // A reservation is promised whole. Secondary ones give way to a primary one, not to each other.
    auto all = claims(now);
    const size_t index = static_cast<size_t>(&self - members_.data());
    for (size_t i = 0; i < all.size(); i++)
        if (i == index || priority == policy::Priority::secondary) all[i].priority = policy::Priority::primary;
    if (!policy::floors(total_, all)) {
        uint64_t others = 0;
        all[index].reserved_pages = 0;
        if (const auto rest = policy::floors(total_, all)) others = rest->headroom_pages + rest->pages[index];
        status = Status(SH_ERROR_BUDGET, tenant.tenant_name() + ": " + std::to_string(pages) + " pages of " + std::to_string(page_bytes_) +
                                             " bytes cannot be reserved: the device has " + std::to_string(total_) + ", and " +
                                             std::to_string(others) + " are not claimed" + claimants(&self));
        self.reserved = before;
        self.priority = priority_before;
    } else {
        divide(now, true);
    }
    write({.change = Change::reserve, .tenant = &tenant, .now_ns = now, .pages = pages, .priority = priority, .status = status.code()});
    return status;
}

void Arbiter::release_reservation(Tenant& tenant) {
    std::lock_guard lock(mutex_);
    Member& self = member(tenant);
    self.reserved = self.reserved_in_force = 0;
    self.priority = policy::Priority::none;
    const uint64_t now = clock_();
    divide(now, true);
    write({.change = Change::release, .tenant = &tenant, .now_ns = now});
}

Status Arbiter::begin_guest(Tenant& tenant, const GuestTerms& terms) {
    std::lock_guard lock(mutex_);
    Member& self = member(tenant);
    const uint64_t now = clock_();
    Status status;
    if (self.guest_depth == 0) {
        auto all = claims(now);
        const size_t index = static_cast<size_t>(&self - members_.data());
        all[index].runs = false;   // its claim as a guest takes the place of the one that it had
        const auto others = policy::floors(total_, all);
        const uint64_t room = others ? others->headroom_pages + others->pages[index] : 0;
        const uint64_t wanted = std::max(terms.pages, terms.least_pages);
        const uint64_t for_blocks = room - std::min(room, terms.workspace_pages);
        const uint64_t pages = terms.shrink ? std::min(wanted, for_blocks) : wanted;
        if (pages > for_blocks || pages < terms.least_pages || room < terms.workspace_pages) {
            const uint64_t asked = terms.shrink ? terms.least_pages : wanted;
            status = Status(SH_ERROR_BUDGET, tenant.tenant_name() + " is not let in as a guest: it needs " + std::to_string(asked) + " pages" +
                                                 (terms.workspace_pages ? " and " + std::to_string(terms.workspace_pages) + " of workspace" : "") +
                                                 ", and there is headroom for " + std::to_string(room) + ", of " + std::to_string(page_bytes_) +
                                                 " bytes each" + claimants(&self));
        } else {
            self.guest = terms;
            self.guest.pages = pages;
            self.guest_depth = 1;
            self.divided = 0;
            divide(now, false);
        }
    } else {
        self.guest_depth++;
    }
    write({.change = Change::guest, .tenant = &tenant, .now_ns = now, .terms = &terms, .status = status.code()});
    return status;
}

bool Arbiter::end_guest(Tenant& tenant) {
    std::lock_guard lock(mutex_);
    Member& self = member(tenant);
    const uint64_t now = clock_();
    const bool last = --self.guest_depth == 0;
    if (last) {
        self.guest = {};
        self.runs = false;
        self.divided = 0;
        divide(now, false);
    }
    write({.change = Change::guest_end, .tenant = &tenant, .now_ns = now});
    return last;
}

uint64_t Arbiter::total_pages() const {
    std::lock_guard lock(mutex_);
    return total_;
}

Status Arbiter::set_total(uint64_t pages) {
    std::lock_guard lock(mutex_);
    const uint64_t before = std::exchange(total_, pages);
    const uint64_t now = clock_();
    Status status;
    if (!divide(now, true)) {
        // Secondary reservations have given way already.
        auto all = claims(now);
        for (policy::Claim& claim : all)
            if (claim.priority == policy::Priority::secondary) claim.reserved_pages = 0;
        const auto needed = policy::floors(before, all);
        const uint64_t least = needed ? before - needed->headroom_pages : before;
        total_ = before;
        status = Status(SH_ERROR_BUDGET, "a budget of " + std::to_string(pages * page_bytes_) + " bytes is too small: the runtimes on the device need at least " +
                                             std::to_string(least * page_bytes_) + claimants(nullptr));
    }
    write({.change = Change::total, .now_ns = now, .pages = pages, .status = status.code()});
    return status;
}

void Arbiter::set_present(uint64_t pages) {
    std::lock_guard lock(mutex_);
    if (present_ == pages) return;
    const bool matters = std::min(present_, total_) != std::min(pages, total_);
    present_ = pages;
    if (!matters) return;
    const uint64_t now = clock_();
    divide(now, true);
    write({.change = Change::present, .now_ns = now, .pages = pages});
}

uint64_t Arbiter::pages_to_hold() const {
    std::lock_guard lock(mutex_);
    const Figures figures = current_figures();
    return std::max(total_ - headroom_, std::min(total_, present_)) - figures.workspaces;
}

uint32_t Arbiter::tenant_count() const {
    std::lock_guard lock(mutex_);
    return static_cast<uint32_t>(members_.size());
}

Arbiter::Standing Arbiter::standing(const Member& m) const {
    return {m.tenant, m.share, m.granted, m.kept, m.reserved_in_force, m.guest_depth ? m.guest.pages : 0};
}

Arbiter::Standing Arbiter::standing(const Tenant& tenant) const {
    std::lock_guard lock(mutex_);
    return standing(member(tenant));
}

Arbiter::Figures Arbiter::current_figures() const {
    Figures result;
    for (const Member& m : members_) {
        result.reserved += m.reserved_in_force;
        result.kept += m.kept;
        if (!m.guest_depth) continue;
        result.guests += m.guest.pages + m.guest.workspace_pages;
        result.workspaces += m.guest.workspace_pages;
    }
    result.headroom = headroom_;
    return result;
}

Arbiter::Figures Arbiter::figures() const {
    std::lock_guard lock(mutex_);
    return current_figures();
}

void Arbiter::set_journal(Journal journal) {
    std::lock_guard lock(mutex_);
    journal_ = std::move(journal);
}

void Arbiter::write(const Entry& entry) const {
    if (!journal_) return;
    std::vector<Standing> standings;
    for (const Member& m : members_) standings.push_back(standing(m));
    journal_(entry, standings, current_figures());
}

}  // namespace stagehand::core
