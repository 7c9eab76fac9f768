// A budget of the device for the lifetime of the object.
#pragma once

#include <cstdint>

#include <stagehand/stagehand.h>

#include "library.h"

namespace stagehand::cli::bench {

// Restores the budget of the device in its destructor.
class BudgetChange {
public:
    explicit BudgetChange(sh_device* device) : device_(device), before_(device_memory(device).budget_bytes) {}
    ~BudgetChange() { (void)!sh_device_set_budget(device_, before_); }  // a destructor cannot report it
    BudgetChange(const BudgetChange&) = delete;
    BudgetChange& operator=(const BudgetChange&) = delete;

    void set(std::uint64_t bytes) const { check(sh_device_set_budget(device_, bytes), "changing the budget"); }

private:
    sh_device* device_;
    std::uint64_t before_;
};

}  // namespace stagehand::cli::bench
