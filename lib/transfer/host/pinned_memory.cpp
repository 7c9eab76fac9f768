#include "transfer/host/pinned_memory.h"

#include <cstring>
#include <utility>

#include "base/log.h"
#include "base/no_throw.h"
#include "base/size_text.h"
#include "platform/anonymous_memory.h"

namespace stagehand::transfer {

Status PinnedMemory::allocate(BackendDevice& device, uint64_t bytes, PinnedMemory* out) {
    return no_throw([&] {
        PinnedMemory memory;
        SH_TRY(memory.take(device, bytes));
        State& at = memory.at_;
        if (device.host_policy().allocate)
            std::memset(at.data, 0, at.mapped_bytes);
        else
            SH_TRY(platform::touch(at.data, at.mapped_bytes));
        at.registration = {at.mapped_bytes, at.mapped_bytes};
        Status refused;
        if (!device.host_policy().is_pinned)
            refused = register_range(device, at.data, at.mapped_bytes, &at.registration);
        if (!refused.ok())
            log_line(SH_LOG_WARNING, "only %s of %s of host memory could be pinned, so copies of the rest are slow: %s",
                     size_text(at.registration.registered_bytes).c_str(), size_text(at.mapped_bytes).c_str(),
                     refused.text());
        *out = std::move(memory);
        return Status();
    });
}

}  // namespace stagehand::transfer
