#include "core/arbiter.h"

#include <algorithm>

#include "policy/budget.h"

namespace stagehand::core {
namespace {

// A tenant that is pressed asks the arbiter again: it must not press others in turn.
thread_local bool pressing_here = false;

}  // namespace

Arbiter::Member& Arbiter::member(Tenant& tenant) {
    return *std::find_if(members_.begin(), members_.end(), [&](const Member& m) { return m.tenant == &tenant; });
}

void Arbiter::join(Tenant& tenant) {
    std::lock_guard lock(mutex_);
    members_.push_back({});
    members_.back().tenant = &tenant;
}

void Arbiter::leave(Tenant& tenant) {
    std::lock_guard pressing(pressing_);
    std::lock_guard lock(mutex_);
    std::erase_if(members_, [&](const Member& m) { return m.tenant == &tenant; });
    divide(total_);
}

bool Arbiter::divide(uint64_t total) {
    std::vector<policy::Request> requests;
    for (const Member& m : members_)
        if (m.asked) requests.push_back({m.needs.least_pages, m.needs.wanted_pages, static_cast<double>(m.needs.weight)});
    const auto shares = policy::divide(total, requests);
    if (!shares) return false;
    size_t next = 0;
    for (Member& m : members_)
        if (m.asked) m.share = (*shares)[next++];
    return true;
}

uint64_t Arbiter::available(const Member& member) const {
    uint64_t taken = 0;
    for (const Member& m : members_)
        if (&m != &member) taken += m.granted;
    return taken < total_ ? total_ - taken : 0;
}

void Arbiter::press_others(Tenant* except) {
    std::lock_guard pressing(pressing_);
    std::vector<Tenant*> over;
    {
        std::lock_guard lock(mutex_);
        for (const Member& m : members_)
            if (m.tenant != except && m.asked && m.granted > m.share) over.push_back(m.tenant);
    }
    pressing_here = true;
    for (Tenant* tenant : over) tenant->try_to_change();
    pressing_here = false;
}

Status Arbiter::request(Tenant& tenant, const Needs& needs, bool press, uint64_t* out_pages) {
    std::unique_lock lock(mutex_);
    const Needs before = member(tenant).needs;
    const bool had_asked = member(tenant).asked;
    member(tenant).needs = needs;
    member(tenant).asked = true;
    bool fits = divide(total_);
    if (fits && press && !pressing_here && available(member(tenant)) < member(tenant).share) {
        lock.unlock();
        press_others(&tenant);
        lock.lock();
        fits = divide(total_);
    }
    Member& self = member(tenant);
    // What it holds it may go on holding up to its share, whatever others hold beyond theirs: else two that have to shrink would
    // wait for each other.
    const uint64_t pages = std::min(self.share, std::max(available(self), self.granted));
    if (fits && pages >= needs.least_pages) {
        self.granted = std::max(self.granted, pages);   // what it holds counts until it says that it holds less
        *out_pages = pages;
        return Status();
    }
    std::string others;
    for (const Member& m : members_)
        if (&m != &self && m.granted)
            others += (others.empty() ? "; " : ", ") + m.tenant->tenant_name() + " holds " + std::to_string(m.granted) + " pages";
    const std::string text = std::to_string(needs.least_pages) + " pages are needed at least, of the device's " +
                             std::to_string(total_) + " there are " + std::to_string(available(self)) + others;
    if (fits) return Status(SH_ERROR_BUDGET, text);   // the needs stay known: others give back at their next edge
    self.needs = before;
    self.asked = had_asked;
    divide(total_);
    return Status(SH_ERROR_BUDGET, text);
}

void Arbiter::settle(Tenant& tenant, uint64_t pages) {
    std::lock_guard lock(mutex_);
    member(tenant).granted = pages;
}

bool Arbiter::wants_change(const Tenant& tenant) const {
    std::lock_guard lock(mutex_);
    for (const Member& m : members_)
        if (m.tenant == &tenant) return m.asked && (m.share < m.granted || (m.share > m.granted && available(m) > m.granted));
    return false;
}

uint64_t Arbiter::total_pages() const {
    std::lock_guard lock(mutex_);
    return total_;
}

Status Arbiter::set_total(uint64_t pages, uint64_t page_bytes) {
    std::lock_guard lock(mutex_);
    if (!divide(pages)) {
        uint64_t least = 0;
        for (const Member& m : members_) least += m.asked ? m.needs.least_pages : 0;
        return Status(SH_ERROR_BUDGET, "a budget of " + std::to_string(pages * page_bytes) +
                                           " bytes is too small: the runtimes on the device need at least " +
                                           std::to_string(least * page_bytes));
    }
    total_ = pages;
    return Status();
}

void Arbiter::press_all() { press_others(nullptr); }

uint32_t Arbiter::tenant_count() const {
    std::lock_guard lock(mutex_);
    return static_cast<uint32_t>(members_.size());
}

}  // namespace stagehand::core
