// What memory_saver.cpp and pause.cpp share: devices, allocations, and the frame of each call.
#pragma once

#include <cstdint>
#include <cstdio>
#include <map>
#include <memory>
#include <mutex>
#include <utility>

#include "memory_saver.h"

namespace memory_saver {

struct Device {
    sh_device* handle = nullptr;  // open as long as there are allocations
    uint64_t allocations = 0;
};

struct Allocation {
    std::size_t bytes = 0;
    int device = 0;
    char tag[64] = {};
    // Contents that backup_of() has copied, by their offset and size.
    std::map<std::pair<uint64_t, uint64_t>, std::unique_ptr<uint8_t[]>> backups;
};

using Allocations = std::map<uintptr_t, Allocation>;

// Never destroyed, because programs free memory until they end.
struct State {
    std::mutex mutex;
    std::map<int, Device> devices;
    Allocations allocations;
    char backend[16] = "cuda";
    uint64_t margin_bytes = 0;
    char disk_folder[4096] = {};
};

State& state();

// The text of this thread's last failure. Empty: sh_last_error() has the text.
constexpr std::size_t kErrorBytes = 256;
char* own_error();

// In one of the functions that allocate, free, pause or resume.
class Inside {
public:
    Inside();
    ~Inside();
    Inside(const Inside&) = delete;
    Inside& operator=(const Inside&) = delete;
};

template <class... Values>
sh_status refuse(sh_status status, const char* format, Values... values) {
    std::snprintf(own_error(), kErrorBytes, format, values...);
    return status;
}

// Runs `work`, and lets no exception out.
template <class Work>
sh_status guarded(Work&& work) noexcept {
    const Inside inside;
    try {
        return work();
    } catch (...) {
        return refuse(SH_ERROR_OUT_OF_HOST_MEMORY, "%s", "there is no host memory left");
    }
}

sh_status check_environment();
// Forgets what backup_of() has copied, for a tag or for all (nullptr).
void drop_backups(const char* tag);

}  // namespace memory_saver
