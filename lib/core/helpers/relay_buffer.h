// RelayBuffer: memory of a helper through which bytes go to another device. It is a part of the helper's budget.
#pragma once

#include <memory>
#include <string>

#include "core/device/device.h"
#include "core/device/pool_memory.h"

namespace stagehand::core {

// The constructor and the destructor wait for threads that press the helper's tenants, so that the caller holds no
// runtime's mutex. The other methods: one thread at a time.
class RelayBuffer : public Tenant {
public:
    RelayBuffer(std::shared_ptr<Device> helper, std::string name);
    ~RelayBuffer() override;
    RelayBuffer(const RelayBuffer&) = delete;
    RelayBuffer& operator=(const RelayBuffer&) = delete;

    Device& helper() { return *helper_; }

    // Takes the memory, and lets the device reach it. SH_ERROR_BUDGET or SH_ERROR_BUSY: the helper needs its budget for
    // itself.
    Status take(BackendDevice& device);
    // Nothing uses the memory any more.
    Status free();
    // The helper may use the memory for ever.
    void abandon() noexcept;
    uint64_t address() const { return memory_.address(); }
    uint64_t bytes() const { return memory_.bytes(); }

    void try_to_change() override {}
    void feel_pressure(uint64_t) override {}
    std::string tenant_name() const override { return name_; }
    bool is_runtime() const override { return false; }

private:
    Status reach(BackendDevice& device);

    const std::shared_ptr<Device> helper_;
    const std::string name_;
    PoolMemory memory_;
    uint64_t lost_pages_ = 0;
};

}  // namespace stagehand::core
