// Tenant: who holds memory of a device, as the device's arbiter sees it, and what tenants tell the arbiter.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "policy/shares.h"

namespace stagehand::core {

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

}  // namespace stagehand::core
