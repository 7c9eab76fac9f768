// Arbiter: divides a device's budget among its runtimes, by what they need, by what is protected, reserved or lent to
// guests, and by how often they are used. A runtime may hold what it was granted. A runtime that should hold less gives
// memory back at the edge of its step.
#pragma once

#include <cstdint>
#include <functional>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/status.h"
#include "policy/shares.h"

namespace stagehand::core {

// A runtime as the arbiter sees it.
class Tenant {
public:
    virtual ~Tenant() = default;
    // Changes to the share that the arbiter has found for the tenant, unless the tenant is in a step or another thread
    // uses it. Any thread may call this, without locks of the arbiter, but never a thread that is inside the same
    // tenant.
    virtual void try_to_change() = 0;
    // The tenant holds this many pages that others want, and did not give them up. Called like try_to_change().
    virtual void feel_pressure(uint64_t pages) = 0;
    virtual std::string tenant_name() const = 0;
    // False for memory that the engine itself uses.
    virtual bool is_runtime() const { return true; }
};

// What a runtime needs of the device.
struct Needs {
    uint64_t least_pages = 0;               // the runtime cannot run with less
    uint64_t wanted_pages = 0;              // the runtime gains nothing from more
    std::vector<policy::CurvePoint> curve;  // how much shorter its step gets with more memory
};

// What a runtime holds, told to the arbiter after each change.
struct Holding {
    uint64_t pages = 0;
    uint64_t kept_pages = 0;          // the protected ones among them
    std::vector<policy::Part> parts;  // what the runtime could give up
};

struct GuestTerms {
    uint64_t least_pages = 0;
    uint64_t pages = 0;        // wanted by the guest
    uint64_t asked_pages = 0;  // given explicitly; 0: as many as are worth having
    uint64_t workspace_pages = 0;
    bool shrink = false;  // fewer pages are enough, but no fewer than least_pages
};

// Thread-safe. A call that says that a tenant has, needs or claims less does not fail. If host memory is too short for
// a new division, shares stay as they are until the next one. A call that asks for more either works, or throws without
// any change.
class Arbiter {
public:
    // `clock` is the device's clock, in nanoseconds.
    Arbiter(std::function<uint64_t()> clock, uint64_t page_bytes) : clock_(std::move(clock)), page_bytes_(page_bytes) {}

    void join(Tenant& tenant);
    // Returns when no other thread is about to call the tenant. The tenant could not give back `lost_pages`, and nobody
    // ever gets them again.
    void leave(Tenant& tenant, uint64_t lost_pages) noexcept;

    // States a tenant's needs and asks for its share: the pages that the division gives it, less those that others
    // still have to give back. With `press`, idle tenants that hold more than their share give it back first. If fewer
    // than the least pages are left, the tenant keeps what it has. The result is then SH_ERROR_BUDGET if there is no
    // more for the tenant, or SH_ERROR_BUSY if others hold part of its share until their steps end.
    Status request(Tenant& tenant, const Needs& needs, bool press, uint64_t* out_pages);
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

    // Reservations: each tenant has at most one, and a new one replaces it. Returns SH_ERROR_BUDGET without any change
    // if the reservation does not fit.
    // A tenant has one reservation. Another one takes its place, and gets another number.
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
    // Lets each tenant that holds more than its share change to its share, starting with the tenant whose next step is
    // furthest away. Calls feel_pressure() of the tenants that still hold more afterwards.
    void press_all() { press({}); }
    // Presses only until the tenant could have its share and its workspace.
    void make_room(const Tenant& tenant);
    // Returns SH_ERROR_BUSY while the tenant cannot have them, because others have to give up part of them first.
    Status check_room(const Tenant& tenant) const;
    uint32_t runtime_count() const;

    // In pages.
    struct Figures {
        uint64_t reserved = 0;
        uint64_t guests = 0;  // includes workspaces
        uint64_t workspaces = 0;
        uint64_t kept = 0;
        // What one more guest could get. Limited to the pages within reach if the budget is larger.
        uint64_t headroom = 0;
    };
    Figures figures() const;
    struct Standing {
        const Tenant* tenant = nullptr;
        uint64_t share = 0;    // pages that the tenant should hold
        uint64_t granted = 0;  // pages that the tenant may hold now
        uint64_t kept = 0;
        uint64_t reserved = 0;
        uint64_t guest = 0;
        bool operator==(const Standing&) const = default;
    };
    Standing standing(const Tenant& tenant) const;

    // For tests: each change of state, reported under the arbiter's lock, together with the state after it.
    enum class Change {
        join,
        leave,
        ask,
        grant,
        settle,
        withdraw,
        keep,
        step,
        reserve,
        release,
        guest,
        guest_end,
        total,
        present
    };
    struct Entry {
        Change change = Change::join;
        const Tenant* tenant = nullptr;
        uint64_t now_ns = 0;
        uint64_t pages = 0;
        const Needs* needs = nullptr;
        const Holding* holding = nullptr;
        const GuestTerms* terms = nullptr;
        policy::Priority priority = policy::Priority::none;
        sh_status status = SH_OK;
    };
    using Journal = std::function<void(const Entry&, std::span<const Standing>, const Figures&)>;
    void set_journal(Journal journal);

private:
    struct Member {
        Tenant* tenant = nullptr;
        Needs needs;
        Holding holding;
        bool runs = false;  // has asked, and has not withdrawn
        uint64_t kept = 0;  // the part of holding.kept_pages that was not promised to others before
        uint64_t reserved = 0;
        policy::Priority priority = policy::Priority::none;
        uint64_t reserved_in_force = 0;
        uint64_t reservation = 0;  // its number
        uint32_t guest_depth = 0;
        GuestTerms guest;
        uint64_t divided = 0;     // what the division gives it, without guests
        double divided_rate = 0;  // how often it was used at the time of that division
        uint64_t share = 0;
        uint64_t granted = 0;  // pages that it may hold now
        uint64_t last_step_ns = 0;
        double period_ns = 0;  // smoothed time between steps; 0: fewer than two steps so far
        bool stepped = false;
    };

    Member& member(const Tenant& tenant);
    const Member& member(const Tenant& tenant) const;
    static uint64_t to_hold(const Member& member);
    double steps_per_second(const Member& member, uint64_t now_ns) const;
    double wait_for_step(const Member& member, uint64_t now_ns) const;
    std::vector<policy::Claim> claims(uint64_t now_ns) const;
    bool divide(uint64_t now_ns, bool anew);
    void divide_now_or_later(uint64_t now_ns, bool anew) noexcept;
    // `undo` reverts the change that caused the new division, if host memory is too short for it.
    template <class Undo>
    bool divide_or_undo(uint64_t now_ns, bool anew, Undo&& undo) {
        try {
            return divide(now_ns, anew);
        } catch (...) {
            undo();
            throw;
        }
    }
    void take_over(std::span<const policy::Claim> claims, const policy::Floors& floors, uint64_t pages,
                   std::vector<uint64_t> divided, bool anew);
    void tell_of_given_up(const Member& member, uint64_t in_force) const noexcept;
    bool still_right(std::span<const policy::Claim> claims, const policy::Floors& floors, uint64_t pages) const;
    void reconsider(uint64_t now_ns);
    void raise_kept(std::span<policy::Claim> claims) const;
    uint64_t usable(std::span<const policy::Claim> claims, const policy::Floors& floors) const;
    uint64_t within_reach() const;
    uint64_t there() const;
    uint64_t taken_besides(const Member* member) const;
    uint64_t available(const Member* member) const;
    bool has_room(const Member& member) const;
    uint64_t needed_together(const Member* self = nullptr, uint64_t least_pages = 0) const;
    Status refuse(const Member& self, uint64_t least_pages) const;
    std::string bytes(uint64_t pages) const;
    std::string claimants(const Member* except) const;
    void press(const std::function<bool()>& enough, const Tenant* except = nullptr);
    Tenant* next_to_press(std::span<const Standing> asked, const Tenant* except) const;
    Standing standing(const Member& member) const;
    Figures current_figures() const;
    void write(const Entry& entry) const;

    const std::function<uint64_t()> clock_;
    const uint64_t page_bytes_;
    mutable std::mutex mutex_;
    std::mutex pressing_;  // held while tenants are called; taken before mutex_
    std::vector<Member> members_;
    uint64_t total_ = 0;
    uint64_t present_ = UINT64_MAX;
    uint64_t lent_ = 0;      // pages that are lent for a moment
    uint64_t lost_ = 0;      // pages that nobody can give back
    uint64_t headroom_ = 0;  // of the whole budget, whether or not it is within reach
    bool overdue_ = false;   // a division failed because host memory was too short
    Journal journal_;
};

}  // namespace stagehand::core
