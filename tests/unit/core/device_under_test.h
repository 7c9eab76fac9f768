// Which device the tests of the core open. STAGEHAND_TEST_DEVICE names another than the host's memory ("cuda:0"), STAGEHAND_TEST_PAGE_BYTES
// its pages (2 MiB; blocks and budgets follow). Where that device is not there, nothing is run, and the program says why.
#pragma once

#include <cstdint>
#include <string>

namespace stagehand::test {

std::string device_under_test();

// It is the host's memory, by the host backend: it can be slow, spoil what is not loaded, and be asked what it holds.
bool on_host_backend();

// STAGEHAND_TEST_PLAIN=1 has every device of a program opened as one that does not map memory by pages.
bool plain_devices();

// The smallest page of the device, with pages or without; 0 where it cannot be opened.
uint64_t smallest_page_of_device_under_test(bool plain);

// What sizes and budgets are counted in.
uint64_t page_of_device_under_test();
inline const uint64_t kPage = page_of_device_under_test();

}  // namespace stagehand::test
