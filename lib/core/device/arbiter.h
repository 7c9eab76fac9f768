// Arbiter: divides a device's budget among its tenants, by what they need, by what is protected, reserved or lent to
// guests, and by how often they are used. A runtime may hold what it was granted. A runtime that should hold less gives
// memory back at the edge of its step.
#pragma once

#include <cstdint>
#include <functional>
#include <mutex>

#include "base/status.h"
#include "core/device/ledger.h"
#include "core/device/reclaimer.h"
#include "core/device/refusals.h"
#include "core/device/tenant.h"

namespace stagehand::core {

// Thread-safe. A call that says that a tenant has, needs or claims less does not fail. If host memory is too short for
// a new division, shares stay as they are until the next one. A call that asks for more either works, or throws without
// any change.
class Arbiter {
public:
    // `clock` is the device's clock, in nanoseconds.
    Arbiter(std::function<uint64_t()> clock, uint64_t page_bytes)
        : clock_(std::move(clock)), ledger_(page_bytes), refusals_(ledger_), reclaimer_(ledger_, mutex_, clock_) {}

    void join(Tenant& tenant);
    // Returns when no other thread is about to call the tenant. The tenant could not give back `lost_pages`, and nobody
    // ever gets them again.
    void leave(Tenant& tenant, uint64_t lost_pages) noexcept;

    // States a tenant's needs and asks for its share: the pages that the division gives it, less those that others
    // still have to give back. With `reclaim`, idle tenants that hold more than their share give it back first. If
    // fewer than the least pages are left, the tenant keeps what it has. The result is then SH_ERROR_BUDGET if there is
    // no more for the tenant, or SH_ERROR_BUSY if others hold part of its share until their steps end.
    Status request(Tenant& tenant, const Needs& needs, bool reclaim, uint64_t* out_pages);
    // The tenant holds this, and will hold no more until it asks again.
    void settle(Tenant& tenant, Holding holding) noexcept;
    // The tenant holds nothing and needs nothing until it asks again.
    void withdraw(Tenant& tenant) noexcept;
    // `pages` of what the tenant holds are protected, except those that were promised to others before.
    void keep(Tenant& tenant, uint64_t pages) noexcept;
    // The tenant begins a step. How often each tenant steps decides how much memory is worth to it.
    void note_step(Tenant& tenant) noexcept;
    // The tenant should ask again at its next edge, because its share differs from what it holds. Cheap.
    bool wants_change(const Tenant& tenant) const;
    // The tenant holds more than its share. Cheap.
    bool has_to_give(const Tenant& tenant) const;

    // A tenant has one reservation. Another one takes its place, and gets another number. Returns SH_ERROR_BUDGET
    // without any change if the reservation does not fit.
    Status reserve(Tenant& tenant, uint64_t pages, policy::Priority priority, uint64_t* out_number);
    // False, without any change, if another reservation has taken its place.
    bool release_reservation(Tenant& tenant, uint64_t number) noexcept;

    // Guests: returns SH_ERROR_BUDGET without any change if the guest does not fit into the headroom. Calls are
    // counted.
    Status begin_guest(Tenant& tenant, const GuestTerms& terms);
    // Returns true for the last end, which leaves the tenant without a claim.
    bool end_guest(Tenant& tenant) noexcept;

    // Lends up to `most` of the pages that no tenant may hold now, for a moment. Returns 0 if fewer than `least` are
    // there. Tenants that ask meanwhile have so much less.
    uint64_t lend(uint64_t least, uint64_t most) noexcept;
    // `lost_pages` of them stay in use until the device is closed.
    void take_back(uint64_t pages, uint64_t lost_pages) noexcept;

    uint64_t total_pages() const;
    // Returns SH_ERROR_BUDGET without any change if the needed, protected, reserved and lent pages do not fit.
    Status set_total(uint64_t pages);
    // `pages` of the total are present. Other users of the device, in this process or another one, have taken the rest.
    // Pages that nobody holds for certain are divided only up to this number.
    void set_present(uint64_t pages) noexcept;
    // The pages that all tenants together may hold: the pages that can be divided, less the guests' workspaces.
    uint64_t pages_to_hold() const;
    Reclaimer& reclaimer() { return reclaimer_; }
    // Returns SH_ERROR_BUSY while the tenant cannot have its share and its workspace, because others have to give up
    // part of them first.
    Status check_room(const Tenant& tenant) const;
    uint32_t runtime_count() const;
    Ledger::Figures figures() const;
    Standing standing(const Tenant& tenant) const;

private:
    Status let_in(Account& self, const GuestTerms& terms);

    const std::function<uint64_t()> clock_;
    mutable std::mutex mutex_;
    Ledger ledger_;
    const Refusals refusals_;
    Reclaimer reclaimer_;
};

}  // namespace stagehand::core
