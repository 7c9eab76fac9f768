// The pressure on tenants that hold more than their share, and the room that it makes.
#include <algorithm>

#include "core/device/arbiter.h"

namespace stagehand::core {
namespace {

// Set while this thread calls a tenant. A tenant that is pressed asks the arbiter again, and must not press others
// then.
thread_local bool pressing_here = false;

// The maximal number of rounds over all tenants in one press().
constexpr size_t kRoundsOfPressure = 4;

}  // namespace

// Shares are divided again each time a tenant gives memory up, which may leave others with more than their share, and
// gives others the room to change to a smaller plan. So the loop goes on until all tenants above their shares have been
// asked since memory was last given up.
void Arbiter::press(const std::function<bool()>& enough, const Tenant* except) {
    if (pressing_here) return;
    std::lock_guard pressing(pressing_);
    std::vector<Standing> asked, told;
    uint64_t left = 0;
    {
        std::lock_guard lock(mutex_);
        left = kRoundsOfPressure * members_.size();
    }
    for (; Tenant* const tenant = left ? next_to_press(asked, except) : nullptr; left--) {
        if (enough && enough()) return;
        const uint64_t before = standing(*tenant).granted;
        {
            struct Here {
                Here() { pressing_here = true; }
                ~Here() { pressing_here = false; }
            } here;
            tenant->try_to_change();
        }
        const Standing after = standing(*tenant);
        if (after.granted < before) asked.clear();
        asked.push_back(after);
        if (after.granted <= after.share || std::find(told.begin(), told.end(), after) != told.end()) continue;
        told.push_back(after);
        tenant->feel_pressure(after.granted - after.share);
    }
}

Tenant* Arbiter::next_to_press(std::span<const Standing> asked, const Tenant* except) const {
    std::lock_guard lock(mutex_);
    Tenant* next = nullptr;
    double longest = 0;
    const uint64_t now = clock_();
    for (const Member& m : members_) {
        if (m.tenant == except || m.granted <= m.share) continue;
        const bool was_asked = std::any_of(asked.begin(), asked.end(), [&](const Standing& before) {
            return before.tenant == m.tenant && before.granted == m.granted && before.share == m.share;
        });
        const double wait = wait_for_step(m, now);
        if (was_asked || (next && wait <= longest)) continue;
        next = m.tenant;
        longest = wait;
    }
    return next;
}

// The workspace must be free even if the tenant needs no pages for itself.
bool Arbiter::has_room(const Member& self) const { return taken_besides(&self) + self.share <= there(); }

void Arbiter::make_room(const Tenant& tenant) {
    press(
        [&] {
            std::lock_guard lock(mutex_);
            return has_room(member(tenant));
        },
        &tenant);
}

Status Arbiter::check_room(const Tenant& tenant) const {
    std::lock_guard lock(mutex_);
    const Member& self = member(tenant);
    if (has_room(self)) return Status();
    return Status(
        SH_ERROR_BUSY,
        "other runtimes still hold part of this runtime's share of " + bytes(self.share) +
            (self.guest.workspace_pages ? ", and " + bytes(self.guest.workspace_pages) + " of workspace" : "") +
            ", until their steps and views end" + claimants(&self));
}

}  // namespace stagehand::core
