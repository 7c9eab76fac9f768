// Stamps: bytes that tell what they are. Each word names its block, its version and its place, so that wrong bytes say whose they are.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace stagehand::test {

// Versions of a block are counted from 1 over all blocks. These marks say that the bytes were never to be seen in a view.
constexpr uint32_t kScratch = 1u << 30;   // written between the begin and the end of an update, and replaced before the end
constexpr uint32_t kRetired = 1u << 31;   // written when the block was unregistered

struct Stamp {
    uint32_t block = 0;
    uint32_t version = 0;
    std::vector<uint8_t> bytes;
};
using Version = std::shared_ptr<const Stamp>;

Version stamp(uint32_t block, uint32_t version, uint64_t bytes);

// Where the bytes are not the version's, and what they are instead; empty when all are right.
std::string differences(const uint8_t* at, const Stamp& wanted);

}  // namespace stagehand::test
