// Accounts: the claim of sh_alloc()'s memory to the budget of its device.
#pragma once

#include <cstdint>
#include <string>

#include "base/status.h"
#include "core/device/device.h"

namespace stagehand::core {

// Stands beside the runtimes as a tenant that needs all it has, and never gives any of it up by itself. One caller at a
// time.
class Accounts final : public Tenant {
public:
    explicit Accounts(Device& device) : device_(device) {}
    // What is held still is lost.
    ~Accounts() override;
    Accounts(const Accounts&) = delete;
    Accounts& operator=(const Accounts&) = delete;

    // Asks for room for `bytes` in all, more than now. Runtimes give memory up for it. On failure nothing has changed.
    Status claim(uint64_t bytes);
    // `bytes` are held in all. What was claimed beyond them is for others.
    void settle(uint64_t bytes) noexcept;

    void try_to_change() override {}
    void feel_pressure(uint64_t) override {}
    std::string tenant_name() const override { return "memory of sh_alloc()"; }
    bool is_runtime() const override { return false; }

private:
    uint64_t pages(uint64_t bytes) const { return (bytes + device_.page_bytes() - 1) / device_.page_bytes(); }
    Status ask(uint64_t pages, bool press);

    Device& device_;
    bool joined_ = false;
    uint64_t claimed_bytes_ = 0;
};

}  // namespace stagehand::core
