// RuntimeTag: the number that tells the block ids of one runtime from those of another.
#pragma once

#include <cstdint>

namespace stagehand::core {

// A number from 1 on that no other runtime of the process has while this object lives. A number that was given back is
// used again as late as possible. The constructor throws std::bad_alloc if all numbers are taken.
class RuntimeTag {
public:
    RuntimeTag();
    ~RuntimeTag();
    RuntimeTag(const RuntimeTag&) = delete;
    RuntimeTag& operator=(const RuntimeTag&) = delete;

    uint16_t value() const { return value_; }

private:
    uint16_t value_;
};

}  // namespace stagehand::core
