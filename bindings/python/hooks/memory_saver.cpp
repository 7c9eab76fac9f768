// Devices and allocations of torch_memory_saver's hooks.
#include "memory_saver.h"

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <iterator>
#include <map>
#include <mutex>
#include <utility>
#include <vector>

namespace memory_saver {

namespace {

struct Device {
    sh_device* handle = nullptr;  // open as long as there are allocations
    uint64_t allocations = 0;
};

struct Allocation {
    std::size_t bytes = 0;
    int device = 0;
    char tag[64] = {};
};

// Never destroyed, because programs free memory until they end.
struct State {
    std::mutex mutex;
    std::map<int, Device> devices;
    std::map<uintptr_t, Allocation> allocations;
    char backend[16] = "cuda";
    uint64_t margin_bytes = 0;
};

State& state() {
    static State* const made = new State;
    return *made;
}

// Python checks these variables, and raises an error for other values.
bool is_true(const char* variable) {
    const char* const value = std::getenv(variable);
    return value && (!std::strcmp(value, "1") || !std::strcmp(value, "true") || !std::strcmp(value, "yes"));
}

Config first_config() {
    Config made = {};
    made.interesting = is_true("TMS_INIT_ENABLE");
    made.cpu_backup = is_true("TMS_INIT_ENABLE_CPU_BACKUP");
    made.disk_backup = is_true("TMS_INIT_ENABLE_DISK_BACKUP");
    std::snprintf(made.tag, sizeof made.tag, "default");
    if (const char* const backend = std::getenv("TMS_INIT_CPU_BACKUP_BACKEND"))
        std::snprintf(made.cpu_backup_backend, sizeof made.cpu_backup_backend, "%s", backend);
    return made;
}

// Returns a device for one more allocation, or nullptr.
sh_device* begin_allocation(int number) {
    State& all = state();
    const std::lock_guard<std::mutex> lock(all.mutex);
    Device& device = all.devices[number];
    char name[32];
    std::snprintf(name, sizeof name, "%s:%d", all.backend, number);
    if (!device.handle && sh_device_open(name, nullptr, &device.handle) < 0) return nullptr;
    ++device.allocations;
    return device.handle;
}

void end_allocation(int number) {
    State& all = state();
    sh_device* unused = nullptr;
    {
        const std::lock_guard<std::mutex> lock(all.mutex);
        Device& device = all.devices[number];
        if (!--device.allocations) unused = std::exchange(device.handle, nullptr);
    }
    sh_device_close(unused);
}

bool leaves_margin(sh_device* device, std::size_t bytes) {
    uint64_t margin;
    {
        const std::lock_guard<std::mutex> lock(state().mutex);
        margin = state().margin_bytes;
    }
    sh_memory_info info = SH_MEMORY_INFO_INIT;
    return !margin || (sh_device_get_memory(device, &info) >= 0 && info.free_bytes >= bytes + margin);
}

using Opened = std::vector<sh_device*>;

// References of its own, so that no device closes during a call.
Opened open_devices() {
    State& all = state();
    const std::lock_guard<std::mutex> lock(all.mutex);
    Opened opened;
    for (const auto& [number, device] : all.devices) {
        char name[32];
        std::snprintf(name, sizeof name, "%s:%d", all.backend, number);
        sh_device* handle = nullptr;
        if (device.handle && sh_device_open(name, nullptr, &handle) >= 0) opened.push_back(handle);
    }
    return opened;
}

sh_status pause_one(sh_device* device, const char* tag) {
    sh_pause_options options = SH_PAUSE_OPTIONS_INIT;
    options.tags = &tag;
    options.tag_count = tag ? 1 : 0;
    return sh_pause(device, &options, nullptr);
}

sh_status resume_one(sh_device* device, const char* tag) {
    sh_resume_options options = SH_RESUME_OPTIONS_INIT;
    options.tags = &tag;
    options.tag_count = tag ? 1 : 0;
    return sh_resume(device, &options, nullptr);
}

using Change = sh_status (*)(sh_device*, const char*);

// Changes all devices, or none if one of them fails. A device without the tag is left out.
sh_status change(Change forward, Change back, const char* tag) {
    if (tag && !*tag) tag = nullptr;
    const Opened opened = open_devices();
    std::vector<sh_device*> changed;
    sh_status failed = SH_OK;
    for (sh_device* const device : opened) {
        const sh_status status = forward(device, tag);
        if (status >= 0) changed.push_back(device);
        if (status >= 0 || status == SH_ERROR_NOT_FOUND) continue;
        failed = status;
        break;
    }
    // sh_last_error() keeps the text of the failure if these calls succeed.
    for (sh_device* const device : changed)
        if (failed < 0 && back(device, tag) < 0) break;
    for (sh_device* const device : opened) sh_device_close(device);
    return failed;
}

}  // namespace

Config& config() {
    thread_local Config current = first_config();
    return current;
}

void set_backend(const char* name) {
    const std::lock_guard<std::mutex> lock(state().mutex);
    std::snprintf(state().backend, sizeof state().backend, "%s", name);
}

void set_margin(uint64_t bytes) {
    const std::lock_guard<std::mutex> lock(state().mutex);
    state().margin_bytes = bytes;
}

void* allocate(std::size_t bytes, int number) {
    sh_device* const device = bytes ? begin_allocation(number) : nullptr;
    if (!device) return nullptr;
    const Config& wanted = config();
    sh_alloc_options options = SH_ALLOC_OPTIONS_INIT;
    options.tag = wanted.tag;
    // The library keeps contents in host memory in any case.
    options.contents = wanted.cpu_backup || wanted.disk_backup ? SH_CONTENTS_STAGE : SH_CONTENTS_DROP;
    uint64_t address = 0;
    if (!leaves_margin(device, bytes) || sh_alloc(device, bytes, &options, &address) < 0) {
        end_allocation(number);
        return nullptr;
    }
    Allocation made = {bytes, number, {}};
    std::memcpy(made.tag, wanted.tag, sizeof made.tag);
    const std::lock_guard<std::mutex> lock(state().mutex);
    state().allocations[uintptr_t(address)] = made;
    return reinterpret_cast<void*>(uintptr_t(address));
}

bool give_back(void* memory, sh_status* status) {
    State& all = state();
    Allocation found;
    sh_device* device;
    {
        // Forgotten before it is freed: another thread may get the address as soon as it is free.
        const std::lock_guard<std::mutex> lock(all.mutex);
        const auto at = all.allocations.find(reinterpret_cast<uintptr_t>(memory));
        if (at == all.allocations.end()) return false;
        found = at->second;
        device = all.devices[found.device].handle;
        all.allocations.erase(at);
    }
    *status = sh_free(device, uint64_t(reinterpret_cast<uintptr_t>(memory)));
    if (*status >= 0) {
        end_allocation(found.device);
    } else {
        const std::lock_guard<std::mutex> lock(all.mutex);
        all.allocations[reinterpret_cast<uintptr_t>(memory)] = found;
    }
    return true;
}

sh_status pause(const char* tag) { return change(pause_one, resume_one, tag); }

sh_status resume(const char* tag) { return change(resume_one, pause_one, tag); }

bool released(const void* memory) {
    State& all = state();
    const std::lock_guard<std::mutex> lock(all.mutex);
    const uintptr_t address = reinterpret_cast<uintptr_t>(memory);
    const auto next = all.allocations.upper_bound(address);
    if (next == all.allocations.begin()) return false;
    const auto at = std::prev(next);
    if (address - at->first >= at->second.bytes) return false;
    sh_occupancy_info info = SH_OCCUPANCY_INFO_INIT;
    return sh_occupancy_get_info(all.devices[at->second.device].handle, at->second.tag, &info) >= 0 &&
           info.state != SH_OCCUPANCY_RUNNING;
}

}  // namespace memory_saver
