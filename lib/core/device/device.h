// Device: an open device with its pages, its budget and its staging engine. The runtimes on it share it.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

#include <stagehand/device.h>

#include "backend/backend_device.h"
#include "base/status.h"
#include "core/device/arbiter.h"
#include "core/device/brief_loans.h"
#include "core/device/device_options.h"
#include "core/device/link_arbiter.h"
#include "core/device/page_pool.h"
#include "core/device/pausables.h"
#include "transfer/carrier/helper_names.h"
#include "transfer/host/pinned_memory.h"
#include "transfer/lane/lane.h"
#include "transfer/staging/staging_engine.h"

namespace stagehand::core {

// Thread-safe.
class Device {
public:
    // Opens the device. Returns the device that is open under that name in this process, if there is one.
    static Status open(const char* name, const DeviceOptions& options, std::shared_ptr<Device>* out);

    Device(std::string backend_name, uint32_t ordinal, std::unique_ptr<BackendDevice> backend,
           const DeviceOptions& options, uint64_t page_bytes);

    const std::string& name() const { return name_; }
    BackendDevice& backend() { return *backend_; }
    PagePool& pool() { return pool_; }
    Arbiter& arbiter() { return arbiter_; }
    Pausables& pausables() { return pausables_; }
    transfer::Lanes& lanes() { return lanes_; }
    Links& links() { return links_; }
    BriefLoans& brief_loans() { return brief_loans_; }
    // Does work that needs a part of the budget. If there is too little now, it waits for what is lent for a moment,
    // and tries again.
    template <class Work>
    Status retry_after_loans(Work&& work) {
        for (;;) {
            const uint64_t before = brief_loans_.ended();
            Status status = work();
            const bool short_now = status.code() == SH_ERROR_BUDGET || status.code() == SH_ERROR_BUSY;
            if (!short_now || !brief_loans_.wait(before)) return status;
        }
    }
    // The names of the devices that help this one, as its options say: those that are open and consent, if they say
    // "auto".
    bool has_helpers() const { return !helper_names_.empty(); }
    Status helpers(std::vector<std::string>* out) const;
    bool helps() const { return flags_ & SH_HELPS_OTHERS; }  // consents to help any device of its backend
    transfer::StagingEngine& staging() { return staging_; }
    uint64_t page_bytes() const { return pool_.page_bytes(); }

    // The speed from host to device: as set by the options, as known to the backend, or measured now with at most
    // `most_pages`. It is assumed if there is no memory to measure with.
    Status link(uint64_t most_pages, double* bytes_per_ns);
    // Measures how fast the device unpacks, if that is not known and these pages suffice and are there now.
    Status measure_unpacking(uint64_t most_pages);
    // The time for a byte of contents. 0: not known, or the device does not unpack.
    double unpack_ns_per_byte() const { return unpack_ns_per_byte_.load(std::memory_order_relaxed); }
    bool link_is_given() const { return link_is_given_; }  // by the options
    // How much longer than its bytes a copy takes that is timed alone.
    uint64_t lone_copy_ns() const { return lone_copy_ns_.load(std::memory_order_relaxed); }
    uint64_t known_link_bytes_per_second() const;  // 0: not measured yet
    Status set_budget(uint64_t bytes);
    // Memory that other users of the device have taken cannot be used for growth. An automatic budget follows the free
    // memory. Asks the driver, unless `now` is false and the driver was asked a moment ago.
    void notice_free_memory(bool now);
    // Gives idle pages back to the driver, if more pages exist than runtimes may hold. Any thread may call it and may
    // hold any lock of its own, but not the pool's.
    void limit_pool();
    Status memory(sh_memory_info* out);
    void capabilities(sh_device_caps* out);

    // The pinned memory that contents of sh_alloc() are kept in.
    void note_pinned_contents(uint64_t bytes) { released_contents_.store(bytes, std::memory_order_relaxed); }

    Status host_alloc(uint64_t bytes, void** out, uint32_t* out_pinned);
    Status host_free(void* memory);

    // Returns an error that names the option if these options contradict the open device.
    Status check_reopened(const DeviceOptions& options) const;

private:
    void take_note(uint64_t free, uint64_t total);
    Status measure_link(uint64_t most_pages, double* bytes_per_ns);
    Status automatic_budget(uint64_t* bytes);
    void set_link(double bytes_per_ns);

    const std::string backend_name_;
    const uint32_t ordinal_;  // among the backend's devices
    const std::string name_;
    const uint64_t margin_bytes_;
    const bool link_is_given_;
    const transfer::HelperNames helper_names_;
    const uint32_t flags_;  // of the options
    std::unique_ptr<BackendDevice> backend_;
    transfer::Lanes lanes_;
    Links links_;
    BriefLoans brief_loans_;
    PagePool pool_;
    Arbiter arbiter_;
    Pausables pausables_;
    transfer::StagingEngine staging_;
    mutable std::mutex mutex_;
    std::atomic<uint64_t> looked_ns_{0};
    std::atomic<uint64_t> released_contents_{0};
    std::atomic<uint64_t> lone_copy_ns_{0};
    std::atomic<double> unpack_ns_per_byte_{0};
    bool unpacks_not_ = false;  // the device has refused to unpack
    uint64_t budget_bytes_ = 0;
    std::unordered_map<void*, transfer::PinnedMemory> host_memory_;
};

}  // namespace stagehand::core
