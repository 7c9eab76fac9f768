#include "core/occupancy/accounts.h"

#include <utility>

#include "base/no_throw.h"

namespace stagehand::core {

Accounts::~Accounts() {
    if (joined_) device_.arbiter().leave(*this, pages(claimed_bytes_));
}

Status Accounts::ask(uint64_t pages, bool press) {
    Needs needs;
    needs.least_pages = needs.wanted_pages = pages;
    uint64_t granted = 0;
    return device_.arbiter().request(*this, needs, press, &granted);
}

Status Accounts::claim(uint64_t bytes) {
    if (!joined_) {
        device_.arbiter().join(*this);
        joined_ = true;
    }
    device_.notice_free_memory(true);
    const Status asked = device_.retry_after_loans([&] { return no_throw([&] { return ask(pages(bytes), true); }); });
    if (!asked.ok()) {
        settle(claimed_bytes_);  // others need not wait for what was refused
        return asked.within("memory of sh_alloc()");
    }
    Holding holding;
    holding.pages = pages(bytes);
    device_.arbiter().settle(*this, std::move(holding));
    device_.pool().change_outside(std::exchange(claimed_bytes_, bytes), bytes);
    return Status();
}

void Accounts::settle(uint64_t bytes) noexcept {
    if (!joined_) return;
    device_.pool().change_outside(std::exchange(claimed_bytes_, bytes), bytes);
    if (!bytes) return device_.arbiter().withdraw(*this);
    // Without host memory the claim stays too high until the next change.
    (void)no_throw([&] { return ask(pages(bytes), false); }).ok();
    Holding holding;
    holding.pages = pages(bytes);
    device_.arbiter().settle(*this, std::move(holding));
}

}  // namespace stagehand::core
