#include "transfer/host/host_pages.h"

#include <exception>
#include <utility>

#include "backend/stray_copies.h"
#include "base/log.h"
#include "base/no_throw.h"
#include "base/size_text.h"
#include "platform/anonymous_memory.h"
#include "platform/numa.h"

namespace stagehand::transfer {
namespace {

void give_to_engine(const HostPolicy& policy, void* memory, uint64_t bytes) noexcept {
    const Status status = no_throw([&] { return policy.free(memory, bytes, policy.user_data), Status(); });
    if (!status.ok()) log_line(SH_LOG_ERROR, "options.host_free threw an exception: %s", status.text());
}

Status take_from_engine(const HostPolicy& policy, uint64_t bytes, void** out_memory, uint64_t* out_bytes) {
    if (!platform::round_up(bytes, platform::page_size(), out_bytes))
        return Status(SH_ERROR_OUT_OF_HOST_MEMORY,
                      exact_size_text(bytes) + " of host memory are more than there can be");
    void* memory = nullptr;
    try {
        memory = policy.allocate(*out_bytes, policy.user_data);
    } catch (const std::exception& error) {
        return Status(SH_ERROR_CALLBACK, std::string("options.host_alloc threw an exception: ") + error.what());
    } catch (...) {
        return Status(SH_ERROR_CALLBACK, "options.host_alloc threw an exception");
    }
    if (!memory)
        return Status(SH_ERROR_OUT_OF_HOST_MEMORY, "options.host_alloc gives no " + exact_size_text(*out_bytes));
    if (reinterpret_cast<uint64_t>(memory) % platform::page_size()) {
        give_to_engine(policy, memory, *out_bytes);
        return Status(SH_ERROR_CALLBACK, "options.host_alloc gave memory that does not begin at a page");
    }
    *out_memory = memory;
    return Status();
}

}  // namespace

HostPages& HostPages::operator=(HostPages&& other) noexcept {
    if (this == &other) return *this;
    reset();
    at_ = std::exchange(other.at_, {});
    return *this;
}

Status HostPages::take(BackendDevice& device, uint64_t bytes) {
    const HostPolicy& policy = device.host_policy();
    State at;
    at.device = &device;
    at.bytes = bytes;
    at.mark = StrayCopies::of_process().mark();
    if (policy.allocate) {
        SH_TRY(take_from_engine(policy, bytes, &at.data, &at.mapped_bytes));
    } else {
        SH_TRY(platform::map_anonymous(bytes, &at.data, &at.mapped_bytes, policy.huge_pages));
        if (policy.chooses_node) platform::prefer_node(at.data, at.mapped_bytes, device.info().host_node);
    }
    at_ = at;
    return Status();
}

bool HostPages::reset() {
    if (!data()) return true;
    const HostPolicy& policy = at_.device->host_policy();
    const bool stray = StrayCopies::of_process().may_use(at_.mark);
    if (stray)
        log_line(SH_LOG_WARNING,
                 "%s of host memory stay allocated, because a helper that has failed may still use them",
                 size_text(at_.mapped_bytes).c_str());
    const bool frees = !stray && (policy.is_pinned || unregister_range(*at_.device, at_.data, at_.registration));
    if (frees && policy.allocate)
        give_to_engine(policy, at_.data, at_.mapped_bytes);
    else if (frees)
        platform::unmap_anonymous(at_.data, at_.mapped_bytes);
    abandon();
    return frees;
}

}  // namespace stagehand::transfer
