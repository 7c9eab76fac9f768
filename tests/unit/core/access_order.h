// Accesses of tests and of the library that nothing orders. STAGEHAND_TEST_ORDERED=1 makes a program open the devices
// of its tests through the fault backend, which finds such accesses whether or not the bytes come out wrong.
#pragma once

#include <cstdint>
#include <string>

#include <stagehand/stagehand.h>

namespace stagehand::test {

// Whether the accesses of a device with this name and these options are ordered. Both may become those of the fault
// backend.
bool through_order(std::string* name, std::string* options);

// Such a device, while it is open. Accesses of other devices are not noted.
void watch_order(sh_device* device);
void forget_order(sh_device* device);

// Work that was queued on the stream, or has ended on the calling thread, uses the bytes.
void note_access(sh_device* device, sh_stream stream, const void* address, uint64_t bytes, bool writes);

// The test fails if an access since the last call was not ordered.
void expect_order();

}  // namespace stagehand::test
