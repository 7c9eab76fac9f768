// Code that tests on a GPU share. STAGEHAND_TEST_PAGE_BYTES makes the pages of their devices smaller than 2 MiB, and
// the blocks scale with it.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <string>

#include <gtest/gtest.h>

#include <stagehand/stagehand.h>

#include "cuda_driver.h"

namespace stagehand::test {

inline std::string why() {
    char text[1024] = "";
    sh_last_error(text, sizeof text);
    return text;
}
#define OK(call) ASSERT_EQ((call), SH_OK) << ::stagehand::test::why()
#define CU(call) ASSERT_EQ((call), CUDA_SUCCESS)

inline uint64_t page_bytes() {
    const char* const text = std::getenv("STAGEHAND_TEST_PAGE_BYTES");
    return text ? std::strtoull(text, nullptr, 10) : uint64_t(2) << 20;
}

}  // namespace stagehand::test
