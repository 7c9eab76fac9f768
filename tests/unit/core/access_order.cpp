#include "access_order.h"

#include <cstdlib>
#include <mutex>
#include <set>

#include <gtest/gtest.h>

#include "fault/fault.h"
#include "plugin.h"

namespace stagehand::test {
namespace {

std::mutex mutex;
std::set<sh_device*> watched;

}  // namespace

bool through_order(std::string* name, std::string* options) {
    if (options->find("ordered=") != std::string::npos) return true;
    const char* const variable = std::getenv("STAGEHAND_TEST_ORDERED");
    if (!variable || (*name != "host" && *name != "capture")) return false;
    *options = "wrap=" + *name + ";ordered=1;" + *options;
    *name = "fault";
    return true;
}

void watch_order(sh_device* device) {
    const std::lock_guard lock(mutex);
    watched.insert(device);
}

void forget_order(sh_device* device) {
    const std::lock_guard lock(mutex);
    watched.erase(device);
}

void note_access(sh_device* device, sh_stream stream, const void* address, uint64_t bytes, bool writes) {
    {
        const std::lock_guard lock(mutex);
        if (!watched.contains(device)) return;
    }
    FAULT(sh_fault_use)(stream, reinterpret_cast<uint64_t>(address), bytes, writes);
}

void expect_order() {
    const std::lock_guard lock(mutex);
    static uint64_t before = 0;
    const uint64_t races = FAULT(sh_fault_races)();
    EXPECT_EQ(races, before) << FAULT(sh_fault_first_race)();
    before = races;
}

}  // namespace stagehand::test
