// Devices and allocations of torch_memory_saver's libraries.
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <iterator>
#include <memory>
#include <mutex>
#include <utility>

#include "state.h"

namespace memory_saver {

namespace {

thread_local int depth = 0;
thread_local char last_error[kErrorBytes];

// Returns a device for one more allocation.
sh_status begin_allocation(int number, sh_device** out) {
    State& all = state();
    const std::lock_guard<std::mutex> lock(all.mutex);
    Device& device = all.devices[number];
    char name[32];
    std::snprintf(name, sizeof name, "%s:%d", all.backend, number);
    const sh_status status = device.handle ? SH_OK + 0 : sh_device_open(name, nullptr, &device.handle);
    if (status < 0) return status;
    ++device.allocations;
    *out = device.handle;
    return SH_OK;
}

void end_allocation(int number) noexcept {
    State& all = state();
    sh_device* unused = nullptr;
    {
        const std::lock_guard<std::mutex> lock(all.mutex);
        Device& device = all.devices.find(number)->second;
        if (!--device.allocations) unused = std::exchange(device.handle, nullptr);
    }
    sh_device_close(unused);
}

sh_status check_margin(sh_device* device, std::size_t bytes) {
    uint64_t margin;
    {
        const std::lock_guard<std::mutex> lock(state().mutex);
        margin = state().margin_bytes;
    }
    if (!margin) return SH_OK;
    auto info = sh_sized<sh_memory_info>();
    const sh_status status = sh_device_get_memory(device, &info);
    if (status < 0 || (info.free_bytes >= margin && info.free_bytes - margin >= bytes)) return status;
    return refuse(SH_ERROR_OUT_OF_DEVICE_MEMORY, "%zu bytes and a margin of %llu are more than the %llu that are free",
                  bytes, static_cast<unsigned long long>(margin), static_cast<unsigned long long>(info.free_bytes));
}

sh_status allocate_on(sh_device* device, std::size_t bytes, const Config& wanted, uint64_t* address) {
    if (const sh_status status = check_margin(device, bytes); status < 0) return status;
    sh_alloc_options options = SH_ALLOC_OPTIONS_INIT;
    options.tag = wanted.tag;
    options.contents = wanted.cpu_backup ? SH_CONTENTS_STAGE : wanted.disk_backup ? SH_CONTENTS_FILE : SH_CONTENTS_DROP;
    return sh_alloc(device, bytes, &options, address);
}

// The allocation around some memory. The caller has the lock.
Allocations::iterator find(const void* memory, uint64_t bytes) {
    Allocations& all = state().allocations;
    const uintptr_t address = reinterpret_cast<uintptr_t>(memory);
    const auto next = all.upper_bound(address);
    if (next == all.begin()) return all.end();
    const auto at = std::prev(next);
    const uint64_t offset = address - at->first;
    return offset < at->second.bytes && bytes <= at->second.bytes - offset ? at : all.end();
}

// A reference to the device of an allocation, so that it stays open without the lock.
class Owner {
public:
    Owner(const void* memory, uint64_t bytes) {
        State& all = state();
        const std::lock_guard<std::mutex> lock(all.mutex);
        const auto found = find(memory, bytes);
        if (found == all.allocations.end()) return;
        Device& device = all.devices.find(found->second.device)->second;
        ++device.allocations;
        device_ = device.handle;
        number_ = found->second.device;
        std::memcpy(tag_, found->second.tag, sizeof tag_);
    }
    ~Owner() {
        if (device_) end_allocation(number_);
    }
    Owner(const Owner&) = delete;
    Owner& operator=(const Owner&) = delete;

    // SH_NOT_READY: the memory is on the device, or is of no allocation.
    sh_status read(const void* memory, uint64_t bytes, void* contents) const {
        if (!device_ || !bytes) return SH_NOT_READY;
        sh_status status = SH_OK;
        // Another thread may resume the tag after the look at its state, and may even pause it again. So it is asked
        // anew, as often as that can happen by chance.
        for (int tries = 0; tries < 32; tries++) {
            bool away = false;
            status = find_out(&away);
            if (status < 0 || !away) return status < 0 ? status : sh_status(SH_NOT_READY);
            status = sh_occupancy_read(device_, uint64_t(reinterpret_cast<uintptr_t>(memory)), bytes, contents);
            if (status != SH_ERROR_INVALID_STATE) break;
        }
        return status;
    }

private:
    sh_status find_out(bool* away) const {
        auto info = sh_sized<sh_occupancy_info>();
        const sh_status status = sh_occupancy_get_info(device_, tag_, &info);
        *away = info.state == SH_OCCUPANCY_RELEASED;
        return status;
    }

    sh_device* device_ = nullptr;
    int number_ = 0;
    char tag_[64] = {};
};

// The copy that an earlier call has made, or this one if there is none yet. The caller has the lock.
uint8_t* keep_backup(const void* memory, uint64_t bytes, std::unique_ptr<uint8_t[]> made) {
    const auto found = find(memory, bytes);
    if (found == state().allocations.end()) return nullptr;
    auto& kept = found->second.backups[{reinterpret_cast<uintptr_t>(memory) - found->first, bytes}];
    if (!kept) kept = std::move(made);
    return kept.get();
}

uint8_t* kept_backup(const void* memory, uint64_t bytes) {
    const auto found = find(memory, bytes);
    if (found == state().allocations.end()) return nullptr;
    const auto& backups = found->second.backups;
    const auto at = backups.find({reinterpret_cast<uintptr_t>(memory) - found->first, bytes});
    return at == backups.end() ? nullptr : at->second.get();
}

}  // namespace

State& state() {
    static State* const made = new State;
    return *made;
}

char* own_error() { return last_error; }

Inside::Inside() {
    ++depth;
    last_error[0] = 0;
}
Inside::~Inside() { --depth; }

sh_status check_environment() {
    const char* const variable = wrong_variable();
    if (!variable) return SH_OK;
    const char* const value = std::getenv(variable);
    return refuse(SH_ERROR_INVALID_ARGUMENT, "%s=%s is none of its values", variable, value ? value : "");
}

void drop_backups(const char* tag) {
    const std::lock_guard<std::mutex> lock(state().mutex);
    for (auto& [address, allocation] : state().allocations)
        if (!tag || !std::strcmp(tag, allocation.tag)) allocation.backups.clear();
}

bool inside() { return depth != 0; }

void set_backend(const char* name) {
    const std::lock_guard<std::mutex> lock(state().mutex);
    std::snprintf(state().backend, sizeof state().backend, "%s", name ? name : "");
}

void set_disk_folder(const char* path) {
    const std::lock_guard<std::mutex> lock(state().mutex);
    std::snprintf(state().disk_folder, sizeof state().disk_folder, "%s", path);
    setenv("TMS_DISK_BACKUP_DIR", path, 1);
}

void set_margin(uint64_t bytes) {
    const std::lock_guard<std::mutex> lock(state().mutex);
    state().margin_bytes = bytes;
}

sh_status allocate(std::size_t bytes, int number, void** memory) {
    return guarded([&] {
        *memory = nullptr;
        if (const sh_status status = check_environment(); status < 0) return status;
        // Made before the memory, so that nothing fails afterwards.
        Allocations one;
        one.try_emplace(0);
        Allocations::node_type node = one.extract(one.begin());
        sh_device* device = nullptr;
        if (const sh_status status = begin_allocation(number, &device); status < 0) return status;
        const Config& wanted = config();
        uint64_t address = 0;
        if (const sh_status status = allocate_on(device, bytes, wanted, &address); status < 0) {
            end_allocation(number);
            return status;
        }
        node.key() = uintptr_t(address);
        node.mapped().bytes = bytes;
        node.mapped().device = number;
        std::memcpy(node.mapped().tag, wanted.tag, sizeof wanted.tag);
        *memory = reinterpret_cast<void*>(uintptr_t(address));
        const std::lock_guard<std::mutex> lock(state().mutex);
        state().allocations.insert(std::move(node));
        return sh_status(SH_OK);
    });
}

bool give_back(void* memory, sh_status* status) {
    State& all = state();
    const Inside inside;
    Allocations::node_type found;
    sh_device* device;
    {
        // Forgotten before it is freed: another thread may get the address as soon as it is free.
        const std::lock_guard<std::mutex> lock(all.mutex);
        const auto at = all.allocations.find(reinterpret_cast<uintptr_t>(memory));
        if (at == all.allocations.end()) return false;
        device = all.devices.find(at->second.device)->second.handle;
        found = all.allocations.extract(at);
    }
    *status = sh_free(device, uint64_t(reinterpret_cast<uintptr_t>(memory)));
    if (*status >= 0) {
        end_allocation(found.mapped().device);
    } else {
        const std::lock_guard<std::mutex> lock(all.mutex);
        all.allocations.insert(std::move(found));
    }
    return true;
}

sh_status read(const void* memory, uint64_t bytes, void* contents) {
    return guarded([&] { return Owner(memory, bytes).read(memory, bytes, contents); });
}

uint8_t* backup_of(const void* memory, uint64_t bytes) {
    uint8_t* result = nullptr;
    const sh_status status = guarded([&] {
        {
            const std::lock_guard<std::mutex> lock(state().mutex);
            result = kept_backup(memory, bytes);
        }
        if (result) return sh_status(SH_OK);
        const Owner owner(memory, bytes);
        std::unique_ptr<uint8_t[]> copy(new uint8_t[bytes ? bytes : 1]);
        const sh_status read = owner.read(memory, bytes, copy.get());
        const std::lock_guard<std::mutex> lock(state().mutex);
        if (read == SH_OK) result = keep_backup(memory, bytes, std::move(copy));
        return read;
    });
    return status == SH_OK ? result : nullptr;
}

uint64_t error_text(char* text, uint64_t capacity) {
    if (!last_error[0]) return sh_last_error(text, capacity);
    if (text && capacity) std::snprintf(text, std::size_t(capacity), "%s", last_error);
    return std::strlen(last_error);
}

}  // namespace memory_saver
