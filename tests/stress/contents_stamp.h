// Stamps: bytes that say what they are. Each word holds its block, its version and its place, so that wrong bytes show
// where they come from.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace stagehand::test {

// Versions count from 1 over all blocks. These marks say that no view may ever show the bytes.
constexpr uint32_t kScratch =
    1u << 30;  // written between the begin and the end of an update, and replaced before the end
constexpr uint32_t kRetired = 1u << 31;  // written when the block was unregistered

struct Stamp {
    uint32_t block = 0;
    uint32_t version = 0;
    std::vector<uint8_t> bytes;
};
using Version = std::shared_ptr<const Stamp>;

Version stamp(uint32_t block, uint32_t version, uint64_t bytes);

// Returns where the bytes are not those of the version, and what they are instead. Empty if all bytes are right.
std::string differences(const uint8_t* at, const Stamp& wanted);

}  // namespace stagehand::test
