// Reclaimer: calls the tenants of a device that hold more than their share, so that they give memory back.
#pragma once

#include <cstdint>
#include <functional>
#include <mutex>
#include <span>

#include "core/device/ledger.h"

namespace stagehand::core {

// Thread-safe. Does nothing in a thread that it has called a tenant in.
class Reclaimer {
public:
    // `mutex` protects the ledger, and is never held while a tenant is called.
    Reclaimer(const Ledger& ledger, std::mutex& mutex, const std::function<uint64_t()>& clock)
        : ledger_(ledger), mutex_(mutex), clock_(clock) {}

    // Lets each tenant that holds more than its share change to its share, starting with the tenant whose next step is
    // furthest away. Calls feel_pressure() of the tenants that still hold more afterwards.
    void reclaim() { reclaim({}, nullptr); }
    // Reclaims from the others only until it is enough. `enough` is called with the mutex held.
    void reclaim(const std::function<bool()>& enough, const Tenant* except);
    // Reclaims until the tenant could have its share and its workspace.
    void make_room(const Tenant& tenant);
    // No tenant is called while the result lives. Taken before the ledger's mutex.
    std::unique_lock<std::mutex> pause() { return std::unique_lock(calling_); }

private:
    Tenant* next(std::span<const Standing> asked, const Tenant* except) const;
    Standing standing(const Tenant& tenant) const;

    const Ledger& ledger_;
    std::mutex& mutex_;
    const std::function<uint64_t()>& clock_;
    std::mutex calling_;  // held while tenants are called; taken before mutex_
};

}  // namespace stagehand::core
