// Arbiter: divides a device's budget among the runtimes that live on it, by what they need, what is protected, reserved or lent to
// guests, and how often they are used. What a runtime is granted it may hold; a runtime that should hold less gives back at its
// step's edge.
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
    // Changes to the share that the arbiter has in mind for it, now, unless it is in a step or in use by another thread. May be
    // called on any thread, without locks of the arbiter, never on a thread that is inside the same tenant.
    virtual void try_to_change() = 0;
    // It holds so many pages that others want, and did not give them up. Called like try_to_change().
    virtual void feel_pressure(uint64_t pages) = 0;
    virtual std::string tenant_name() const = 0;
};

// What a runtime needs of the device.
struct Needs {
    uint64_t least_pages = 0;                // below this it cannot run
    uint64_t wanted_pages = 0;               // beyond this it gains nothing
    std::vector<policy::CurvePoint> curve;   // how its step gets shorter with memory
};

// What a runtime holds, when it has changed.
struct Holding {
    uint64_t pages = 0;
    uint64_t kept_pages = 0;                 // of them, protected
    std::vector<policy::Part> parts;         // what it could give up
};

struct GuestTerms {
    uint64_t least_pages = 0;
    uint64_t pages = 0;                      // wanted
    uint64_t asked_pages = 0;                // by name; 0: all that is worth having
    uint64_t workspace_pages = 0;
    bool shrink = false;                     // fewer will do, but not fewer than the least
};

// Thread-safe. What tells it that somebody has, needs or claims less does not fail: where there is no memory to divide anew, shares stay as
// they are until the next division. What asks for more either works or throws, and has then changed nothing.
class Arbiter {
public:
    // `clock` is the device's, in nanoseconds.
    Arbiter(std::function<uint64_t()> clock, uint64_t page_bytes) : clock_(std::move(clock)), page_bytes_(page_bytes) {}

    void join(Tenant& tenant);
    // Returns when no other thread is about to call the tenant. `lost_pages` it could not give back: nobody ever gets them again.
    void leave(Tenant& tenant, uint64_t lost_pages) noexcept;

    // Tells a tenant's needs and asks for its share: what the division gives it, less what others still have to give back. With
    // `press`, others that hold more than their share and are idle give it back first.
    // When less than the least is left the tenant keeps what it has: SH_ERROR_BUDGET if there is no more for it, SH_ERROR_BUSY if others hold
    // part of its share until their steps end.
    Status request(Tenant& tenant, const Needs& needs, bool press, uint64_t* out_pages);
    // The tenant holds, and will hold, no more than this until it asks again.
    void settle(Tenant& tenant, Holding holding) noexcept;
    // It holds nothing and needs nothing until it asks again.
    void withdraw(Tenant& tenant) noexcept;
    // How much of what it holds is protected: as far as it was not promised to others before.
    void keep(Tenant& tenant, uint64_t pages) noexcept;
    // It begins a step: how often each does decides who is worth how much.
    void note_step(Tenant& tenant) noexcept;
    // The tenant's share is not what it holds: it should ask again at its next edge. Cheap.
    bool wants_change(const Tenant& tenant) const;
    // It holds more than its share. Cheap.
    bool has_to_give(const Tenant& tenant) const;

    // Reservations: at most one a tenant; a new one replaces it. SH_ERROR_BUDGET, and nothing changes, when it does not fit.
    Status reserve(Tenant& tenant, uint64_t pages, policy::Priority priority);
    void release_reservation(Tenant& tenant) noexcept;

    // Guests: SH_ERROR_BUDGET, and nothing changes, when the guest does not fit into the headroom. Counted.
    Status begin_guest(Tenant& tenant, const GuestTerms& terms);
    // The last end leaves it without a claim: true.
    bool end_guest(Tenant& tenant) noexcept;

    uint64_t total_pages() const;
    // Fails with SH_ERROR_BUDGET, and changes nothing, when what is needed, protected, reserved and lent does not fit.
    Status set_total(uint64_t pages);
    // As much of the total as there is, because others in or outside the process have taken device memory: what nobody holds for certain is
    // divided only up to this.
    void set_present(uint64_t pages) noexcept;
    // That all tenants together may hold: what can be divided, less the guests' workspaces.
    uint64_t pages_to_hold() const;
    // Lets every idle tenant change to its share, those used furthest in the future first, and tells the others that they are pressed.
    void press_all() { press({}); }
    // The same until the tenant could have its share, and its workspace.
    void make_room(const Tenant& tenant);
    // SH_ERROR_BUSY as long as it could not have them, because others have to give up part of them first.
    Status check_room(const Tenant& tenant) const;
    uint32_t tenant_count() const;

    // In pages.
    struct Figures {
        uint64_t reserved = 0;
        uint64_t guests = 0;      // workspaces included
        uint64_t workspaces = 0;
        uint64_t kept = 0;
        uint64_t headroom = 0;    // what one more guest could get: of what is within reach, where the budget is more
    };
    Figures figures() const;
    struct Standing {
        const Tenant* tenant = nullptr;
        uint64_t share = 0;       // should hold
        uint64_t granted = 0;     // may hold now
        uint64_t kept = 0;
        uint64_t reserved = 0;
        uint64_t guest = 0;
        bool operator==(const Standing&) const = default;
    };
    Standing standing(const Tenant& tenant) const;

    // For tests: each change of state as it is made, under the arbiter's lock, and the state after it.
    enum class Change { join, leave, ask, grant, settle, withdraw, keep, step, reserve, release, guest, guest_end, total, present };
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
        bool runs = false;             // asked, and has not withdrawn
        uint64_t kept = 0;             // of holding.kept_pages, what was not promised to others before
        uint64_t reserved = 0;
        policy::Priority priority = policy::Priority::none;
        uint64_t reserved_in_force = 0;
        uint32_t guest_depth = 0;
        GuestTerms guest;
        uint64_t divided = 0;          // what the division gives it, guests aside
        double divided_rate = 0;       // how often it was used when that was found
        uint64_t share = 0;
        uint64_t granted = 0;          // what it may hold now
        uint64_t last_step_ns = 0;
        double period_ns = 0;          // between steps, smoothed; 0: fewer than two so far
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
    // `undo` takes back what was to be divided anew for, when there is no memory for it.
    template <class Undo>
    bool divide_or_undo(uint64_t now_ns, bool anew, Undo&& undo) {
        try {
            return divide(now_ns, anew);
        } catch (...) {
            undo();
            throw;
        }
    }
    void take_over(std::span<const policy::Claim> claims, const policy::Floors& floors, uint64_t pages, std::vector<uint64_t> divided, bool anew);
    void tell_of_given_up(const Member& member, uint64_t in_force) const noexcept;
    bool still_right(std::span<const policy::Claim> claims, const policy::Floors& floors, uint64_t pages) const;
    void reconsider(uint64_t now_ns);
    void raise_kept(std::span<policy::Claim> claims) const;
    uint64_t usable(std::span<const policy::Claim> claims, const policy::Floors& floors) const;
    uint64_t within_reach() const;
    uint64_t there() const;
    uint64_t taken_by_others(const Member& member) const;
    uint64_t available(const Member& member) const;
    bool has_room(const Member& member) const;
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
    std::mutex pressing_;   // held while tenants are called; taken before mutex_
    std::vector<Member> members_;
    uint64_t total_ = 0;
    uint64_t present_ = UINT64_MAX;
    uint64_t lost_ = 0;   // by tenants that have left
    uint64_t headroom_ = 0;   // of the whole budget, within reach or not
    bool overdue_ = false;    // a division found no memory
    Journal journal_;
};

}  // namespace stagehand::core
