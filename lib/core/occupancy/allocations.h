// Allocations: the allocations of sh_alloc() on one device, the extents that they lie in, and the claim of both to the
// budget.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "base/status.h"
#include "core/device/device.h"
#include "core/occupancy/accounts.h"
#include "core/occupancy/content_memory.h"
#include "core/occupancy/extent.h"
#include "core/occupancy/passage.h"
#include "core/occupancy/tags.h"

namespace stagehand::core {

// One caller at a time.
class Allocations {
public:
    Allocations(Device& device, Tags& tags, ContentMemory& memory, Passage& passage)
        : device_(device), tags_(tags), memory_(memory), passage_(passage), accounts_(device) {}
    // Waits for the work on the device, and frees everything.
    ~Allocations();

    Status alloc(Tag& tag, uint64_t bytes, Keeping keeping, uint64_t* out_address);
    Status free(uint64_t address);
    // The extent of the allocation that has these bytes.
    Status find(uint64_t address, uint64_t bytes, const Extent** out) const;

    const Extents& extents() const { return extents_; }
    // In the order of the tags.
    std::vector<Extent*> extents_of(const std::vector<Tag*>& tags) const;
    // Adds what no allocation has.
    void find_unused(std::vector<AddressRange>* ranges) const;
    // Tries again to give back what the driver has refused to take.
    void retry_retired() noexcept;

    // The extents change what they hold by themselves.
    Status claim(uint64_t more_bytes) { return accounts_.claim(totals_.held_bytes + more_bytes); }
    void settle() noexcept { accounts_.settle(totals_.held_bytes); }
    const ExtentTotals& totals() const { return totals_; }

private:
    uint64_t least_chunk() const;
    uint64_t chunk_for(const Alike& alike) const;
    Status alloc_alone(Tag& tag, uint64_t bytes, Keeping keeping, uint64_t* out_address);
    Status alloc_shared(Tag& tag, uint64_t bytes, Keeping keeping, uint64_t* out_address);
    Status add_chunk(Tag& tag, uint64_t least, Keeping keeping);
    Status add_extent(Tag& tag, uint64_t bytes, bool shared, Keeping keeping, Extent** out);
    void remove_extent(Extent& extent) noexcept;
    void retire(std::unique_ptr<Extent> extent) noexcept;
    bool let_go(Extent& extent) noexcept;
    Extent& extent_of(uint64_t address) const;

    Device& device_;
    Tags& tags_;
    ContentMemory& memory_;
    Passage& passage_;
    ExtentTotals totals_;
    Accounts accounts_;
    std::map<uint64_t, uint64_t> allocations_;  // their bytes, as asked for, by their addresses
    Extents extents_;
    std::vector<std::unique_ptr<Extent>> retired_;  // without allocations, and the driver refused to take them back
};

}  // namespace stagehand::core
