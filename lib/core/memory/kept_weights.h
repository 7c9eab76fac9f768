// Weights that stay on the device packed: which chunks of which units, and where they lie.
#pragma once

#include <cstdint>
#include <vector>

#include "core/memory/registry.h"
#include "transfer/unpack/kept_chunks.h"

namespace stagehand::core {

// Packed bytes of the unit beyond its first `own_bytes`: entry k counts the chunks that stay if k of a period do.
using KeptBytes = std::vector<uint64_t>;  // kKeptPeriod + 1 entries
void find_kept_bytes(Registry& registry, const Unit& unit, uint64_t own_bytes, KeptBytes* out);

// True if just these chunks of the unit stay.
bool are_kept(Registry& registry, const Unit& unit, uint64_t own_bytes, uint32_t of_period);
// Lets them stay in memory from `*address` on, and moves the address to its end. None of them are there yet.
void keep(Registry& registry, Unit& unit, uint64_t own_bytes, uint32_t of_period, uint64_t* address);
// The address of the first chunk of the unit that stays, or 0 if none does.
uint64_t kept_address(Registry& registry, const Unit& unit);
// No chunk of any unit stays.
void keep_none(Registry& registry) noexcept;

}  // namespace stagehand::core
