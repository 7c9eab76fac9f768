// Arbiter: divides a device's budget among the runtimes that live on it. What a runtime is granted it may hold; a runtime that
// should hold less gives back at its step's edge.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <mutex>
#include <string>
#include <vector>

#include "base/status.h"

namespace stagehand::core {

// A runtime as the arbiter sees it.
class Tenant {
public:
    virtual ~Tenant() = default;
    // Changes to the share that the arbiter has in mind for it, now, unless it is in a step or in use by another thread. May be
    // called on any thread, without locks of the arbiter, never on a thread that is inside the same tenant.
    virtual void try_to_change() = 0;
    virtual std::string tenant_name() const = 0;
};

// Thread-safe.
class Arbiter {
public:
    struct Needs {
        uint64_t least_pages = 0;    // below this the runtime cannot run
        uint64_t wanted_pages = 0;   // beyond this it gains nothing
        uint64_t weight = 0;         // shares of what is left over: bytes of the model
    };

    void join(Tenant& tenant);
    // Returns when no other thread is about to call the tenant.
    void leave(Tenant& tenant);

    // Tells a tenant's needs and asks for its share: what the division gives it, less what others still have to give back. With
    // `press`, others that hold more than their share and are idle give it back first.
    // SH_ERROR_BUDGET when less than the least is left; the tenant then keeps what it has.
    Status request(Tenant& tenant, const Needs& needs, bool press, uint64_t* out_pages);
    // The tenant holds, and will hold, no more than this until it asks again.
    void settle(Tenant& tenant, uint64_t pages);
    // The tenant's share is not what it holds: it should ask again at its next edge. Cheap.
    bool wants_change(const Tenant& tenant) const;

    uint64_t total_pages() const;
    // Fails with SH_ERROR_BUDGET, and changes nothing, when the tenants' least needs do not fit.
    Status set_total(uint64_t pages, uint64_t page_bytes);
    // Lets every idle tenant change to its share.
    void press_all();
    uint32_t tenant_count() const;

private:
    struct Member {
        Tenant* tenant = nullptr;
        Needs needs;
        uint64_t share = 0;     // what the division gives it
        uint64_t granted = 0;   // what it may hold now
        bool asked = false;
    };

    Member& member(Tenant& tenant);
    bool divide(uint64_t total);
    uint64_t available(const Member& member) const;
    void press_others(Tenant* except);

    mutable std::mutex mutex_;
    std::mutex pressing_;   // held while tenants are called; taken before mutex_
    std::vector<Member> members_;
    uint64_t total_ = 0;
};

}  // namespace stagehand::core
