// The page size of the devices in these tests.
#pragma once

#include <cstdint>

namespace stagehand {

constexpr uint64_t kPage = 4096;

}  // namespace stagehand
