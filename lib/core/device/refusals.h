// Refusals: what a call is told that the arbiter refuses: who has the memory, and what would be enough.
#pragma once

#include <cstdint>
#include <string>

#include "base/status.h"
#include "core/device/ledger.h"

namespace stagehand::core {

class Refusals {
public:
    explicit Refusals(const Ledger& ledger) : ledger_(ledger) {}

    // The device has too little for the tenant's least pages.
    Status least(const Account& self, uint64_t least_pages, uint64_t now_ns) const;
    // Others hold a part of the tenant's share.
    Status share(const Account& self) const;
    Status room(const Account& self) const;
    Status total(uint64_t pages, uint64_t now_ns) const;
    Status reservation(const Account& self, uint64_t pages, uint64_t unclaimed_pages) const;
    // `pages`: what the guest needs, of `room_pages`.
    Status guest(const Account& self, const GuestTerms& terms, uint64_t pages, uint64_t room_pages) const;
    // It asks for more than it is a guest with.
    Status larger_guest(const Account& self) const;

private:
    uint64_t needed_together(uint64_t now_ns, const Account* self, uint64_t least_pages) const;
    std::string claimants(const Account* except) const;
    std::string bytes(uint64_t pages) const { return ledger_.text(pages); }

    const Ledger& ledger_;
};

}  // namespace stagehand::core
