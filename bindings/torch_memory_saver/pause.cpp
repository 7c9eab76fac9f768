// Pauses and resumes of tags on all devices.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <utility>
#include <vector>

#include "state.h"

namespace memory_saver {

namespace {

// References of its own, so that no device closes during a call.
class OpenDevices {
public:
    OpenDevices() {
        State& all = state();
        const std::lock_guard<std::mutex> lock(all.mutex);
        opened_.reserve(all.devices.size());
        for (const auto& [number, device] : all.devices) {
            char name[32];
            std::snprintf(name, sizeof name, "%s:%d", all.backend, number);
            sh_device* handle = nullptr;
            if (device.handle && sh_device_open(name, nullptr, &handle) >= 0) opened_.push_back(handle);
        }
    }
    ~OpenDevices() {
        for (sh_device* const device : opened_) sh_device_close(device);
    }
    OpenDevices(const OpenDevices&) = delete;
    OpenDevices& operator=(const OpenDevices&) = delete;

    auto begin() const { return opened_.begin(); }
    auto end() const { return opened_.end(); }
    std::size_t size() const { return opened_.size(); }

private:
    std::vector<sh_device*> opened_;
};

void copy_disk_folder(char* to, std::size_t capacity) {
    const std::lock_guard<std::mutex> lock(state().mutex);
    const char* const variable = std::getenv("TMS_DISK_BACKUP_DIR");
    std::snprintf(to, capacity, "%s", *state().disk_folder ? state().disk_folder : variable ? variable : "");
}

// The tags of a device that a call changes.
class Names {
public:
    // nullptr: all tags of allocations in a state. Those of runtimes stay.
    Names(sh_device* device, const char* tag, uint32_t state) {
        if (tag) {
            infos_.push_back(sh_sized<sh_occupancy_info>());
            std::snprintf(infos_[0].tag, sizeof infos_[0].tag, "%s", tag);
        } else {
            list(device);
            infos_.erase(std::remove_if(infos_.begin(), infos_.end(),
                                        [&](const sh_occupancy_info& info) {
                                            return info.state != state || !std::strncmp(info.tag, "runtime:", 8);
                                        }),
                         infos_.end());
        }
        for (const sh_occupancy_info& info : infos_) texts_.push_back(info.tag);
    }

    bool empty() const { return texts_.empty(); }

    sh_status pause(sh_device* device, const sh_memory_range* unused, uint64_t count) const {
        sh_pause_options options = SH_PAUSE_OPTIONS_INIT;
        options.tags = texts_.data();
        options.tag_count = texts_.size();
        options.unused = unused;
        options.unused_count = count;
        char folder[sizeof state().disk_folder];
        copy_disk_folder(folder, sizeof folder);
        options.folder = *folder ? folder : nullptr;
        return sh_pause(device, &options, nullptr);
    }
    sh_status resume(sh_device* device) const {
        sh_resume_options options = SH_RESUME_OPTIONS_INIT;
        options.tags = texts_.data();
        options.tag_count = texts_.size();
        return sh_resume(device, &options, nullptr);
    }

private:
    void list(sh_device* device) {
        uint64_t count = 0;
        do {
            infos_.assign(std::size_t(count), sh_sized<sh_occupancy_info>());
            if (sh_occupancy_list(device, infos_.data(), infos_.size(), &count) < 0) return infos_.clear();
        } while (count > infos_.size());
        infos_.resize(std::size_t(count));
    }

    std::vector<sh_occupancy_info> infos_;
    std::vector<const char*> texts_;
};

// Changes tags on all devices, or on none if one of them fails. A device without the tag is left out.
template <class Forward, class Back>
sh_status change(const char* tag, uint32_t state, const Forward& forward, const Back& back) {
    const OpenDevices opened;
    std::vector<std::pair<sh_device*, Names>> changed;
    changed.reserve(opened.size());
    sh_status failed = SH_OK;
    for (sh_device* const device : opened) {
        Names names(device, tag, state);
        if (names.empty()) continue;
        const sh_status status = forward(device, names);
        if (status >= 0) changed.emplace_back(device, std::move(names));
        if (status >= 0 || status == SH_ERROR_NOT_FOUND) continue;
        failed = status;
        break;
    }
    // sh_last_error() keeps the text of the failure if these calls succeed.
    for (const auto& [device, names] : changed)
        if (failed < 0 && back(device, names) < 0) break;
    return failed;
}

const char* name_of(const char* tag) { return tag && *tag ? tag : nullptr; }

}  // namespace

sh_status pause(const char* tag, const sh_memory_range* unused, uint64_t count) {
    return guarded([&] {
        if (const sh_status status = check_environment(); status < 0) return status;
        drop_backups(name_of(tag));  // a thread may have kept one while the tag was resumed
        return change(
            name_of(tag), SH_OCCUPANCY_RUNNING,
            [&](sh_device* device, const Names& names) { return names.pause(device, unused, count); },
            [](sh_device* device, const Names& names) { return names.resume(device); });
    });
}

sh_status resume(const char* tag) {
    return guarded([&] {
        if (const sh_status status = check_environment(); status < 0) return status;
        const sh_status status = change(
            name_of(tag), SH_OCCUPANCY_RELEASED,
            [](sh_device* device, const Names& names) { return names.resume(device); },
            [](sh_device* device, const Names& names) { return names.pause(device, nullptr, 0); });
        if (status >= 0) drop_backups(name_of(tag));
        return status;
    });
}

}  // namespace memory_saver
