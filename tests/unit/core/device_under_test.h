// The device that the tests of the core open. STAGEHAND_TEST_DEVICE names a device other than the host's memory
// ("cuda:0"). STAGEHAND_TEST_PAGE_BYTES sets the device's page size (2 MiB); blocks and budgets scale with it. The
// program runs no tests and says why if that device is not there.
#pragma once

#include <cstdint>
#include <string>

namespace stagehand::test {

std::string device_under_test();

// Returns whether the device is the host's memory by the host backend. This backend can be slow on purpose, can spoil
// memory that was not loaded, and can say what it holds.
bool on_host_backend();

// STAGEHAND_TEST_NO_PAGES=1 makes a program open every device as a device that does not map memory by pages.
bool devices_without_pages();

// Returns the smallest page of the device, with pages or without. Returns 0 if the device cannot be opened.
uint64_t smallest_page_of_device_under_test(bool no_pages);

// Returns the unit of sizes and budgets.
uint64_t page_of_device_under_test();
inline const uint64_t kPage = page_of_device_under_test();

}  // namespace stagehand::test
