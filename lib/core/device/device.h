// Device: an open device with its pages, its budget and its staging engine. Shared by the runtimes that live on it.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>

#include <stagehand/device.h>

#include "backend/backend_device.h"
#include "base/status.h"
#include "core/device/arbiter.h"
#include "core/device/page_pool.h"
#include "transfer/host/pinned_memory.h"
#include "transfer/staging/staging_engine.h"

namespace stagehand::core {

// Thread-safe.
class Device {
public:
    // Opens the device, or gives the one that is open in this process under that name.
    static Status open(const char* name, const sh_device_options& options, std::shared_ptr<Device>* out);

    Device(std::string name, std::unique_ptr<BackendDevice> backend, const sh_device_options& options, uint64_t page_bytes);

    const std::string& name() const { return name_; }
    BackendDevice& backend() { return *backend_; }
    PagePool& pool() { return pool_; }
    Arbiter& arbiter() { return arbiter_; }
    transfer::StagingEngine& staging() { return staging_; }
    uint64_t page_bytes() const { return pool_.page_bytes(); }

    // Host-to-device speed, as told, known to the backend, or measured now.
    Status link(double* bytes_per_ns);
    uint64_t known_link_bytes_per_second();   // 0: not measured yet
    Status set_budget(uint64_t bytes);
    // What others in or outside the process have taken is not there to grow into; an automatic budget follows what is free. Asks the driver,
    // unless it was asked a moment ago and `now` is false.
    void notice_free_memory(bool now);
    // What idle pages exist beyond what runtimes may hold goes back to the driver. Any thread, with any of its locks but the pool's.
    void limit_pool();
    Status memory(sh_memory_info* out);
    void capabilities(sh_device_caps* out);

    Status host_alloc(uint64_t bytes, void** out, uint32_t* out_pinned);
    Status host_free(void* memory);

    // Opening it a second time with these options is a contradiction: says which.
    Status check_reopened(const sh_device_options& options) const;

private:
    void take_note(uint64_t free, uint64_t total);
    Status measure_link(double* bytes_per_ns);
    Status automatic_budget(uint64_t* bytes);

    const std::string name_;
    const uint64_t margin_bytes_;
    std::unique_ptr<BackendDevice> backend_;
    PagePool pool_;
    Arbiter arbiter_;
    transfer::StagingEngine staging_;
    mutable std::mutex mutex_;
    std::atomic<uint64_t> looked_ns_{0};
    uint64_t budget_bytes_ = 0;
    double link_bytes_per_ns_ = 0;
    std::unordered_map<void*, transfer::PinnedMemory> host_memory_;
};

}  // namespace stagehand::core
