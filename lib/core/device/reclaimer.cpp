#include "core/device/reclaimer.h"

#include <algorithm>
#include <vector>

namespace stagehand::core {
namespace {

// Set while this thread calls a tenant. A tenant that is called asks the arbiter again, and must not call others then.
thread_local bool calls_a_tenant = false;

// The maximal number of rounds over all tenants.
constexpr size_t kRoundsOfCalls = 4;

}  // namespace

// Shares are divided again each time a tenant gives memory up, which may leave others with more than their share, and
// gives others the room to change to a smaller plan. So the loop goes on until all tenants above their shares have been
// asked since memory was last given up.
void Reclaimer::reclaim(const std::function<bool()>& enough, const Tenant* except) {
    if (calls_a_tenant) return;
    const std::lock_guard calling(calling_);
    std::vector<Standing> asked, told;
    size_t left = 0;
    {
        const std::lock_guard lock(mutex_);
        left = kRoundsOfCalls * ledger_.accounts().size();
    }
    for (; Tenant* const tenant = left ? next(asked, except) : nullptr; left--) {
        if (enough) {
            const std::lock_guard lock(mutex_);
            if (enough()) return;
        }
        const uint64_t before = standing(*tenant).granted;
        {
            struct Here {
                Here() { calls_a_tenant = true; }
                ~Here() { calls_a_tenant = false; }
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

Tenant* Reclaimer::next(std::span<const Standing> asked, const Tenant* except) const {
    const std::lock_guard lock(mutex_);
    Tenant* next = nullptr;
    double longest = 0;
    const uint64_t now = clock_();
    for (const Account& account : ledger_.accounts()) {
        if (account.tenant == except || account.granted <= account.share) continue;
        const bool was_asked = std::any_of(asked.begin(), asked.end(), [&](const Standing& before) {
            return before.tenant == account.tenant && before.granted == account.granted &&
                   before.share == account.share;
        });
        const double wait = account.rate.next_step_ns(now);
        if (was_asked || (next && wait <= longest)) continue;
        next = account.tenant;
        longest = wait;
    }
    return next;
}

Standing Reclaimer::standing(const Tenant& tenant) const {
    const std::lock_guard lock(mutex_);
    return ledger_.of(tenant).standing();
}

void Reclaimer::make_room(const Tenant& tenant) {
    reclaim([&] { return ledger_.has_room(ledger_.of(tenant)); }, &tenant);
}

}  // namespace stagehand::core
