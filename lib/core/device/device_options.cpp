#include "core/device/device_options.h"

#include <string>

#include "base/flags.h"
#include "base/limits.h"
#include "platform/processors.h"
#include "transfer/staging/staging_size.h"

namespace stagehand::core {
namespace {

Status bad(const char* option, uint64_t value, const std::string& wanted) {
    return Status(SH_ERROR_INVALID_ARGUMENT,
                  std::string("options.") + option + " is " + std::to_string(value) + ", " + wanted);
}

Status check_host_options(const sh_host_options& options) {
    if (options.node > limits::kMostHostNodes && options.node != SH_HOST_NODE_ANY)
        return bad("host.node", options.node, "which is more than " + std::to_string(limits::kMostHostNodes));
    SH_TRY(check_flags("options.host.flags", options.flags, {SH_KNOWN(SH_HOST_SMALL_PAGES), SH_KNOWN(SH_HOST_PINNED)}));
    if ((options.alloc == nullptr) != (options.free == nullptr))
        return Status(SH_ERROR_INVALID_ARGUMENT,
                      "options.host.alloc and options.host.free go together: give both, or neither");
    if ((options.flags & SH_HOST_PINNED) && !options.alloc)
        return bad("host.flags", options.flags, "which says SH_HOST_PINNED, but host.alloc is NULL");
    if (options.staging_threads > transfer::kMostThreads)
        return bad("host.staging_threads", options.staging_threads,
                   "which is more than " + std::to_string(transfer::kMostThreads));
    if (options.staging_bytes > transfer::kLargestRing)
        return bad("host.staging_bytes", options.staging_bytes,
                   "which is more than " + std::to_string(transfer::kLargestRing));
    if (options.staging_cpus && !platform::parse_processors(options.staging_cpus))
        return Status(SH_ERROR_INVALID_ARGUMENT, "options.host.staging_cpus is \"" + std::string(options.staging_cpus) +
                                                     "\", which is no list of processors, such as \"0-7,16\"");
    return Status();
}

}  // namespace

Status check_link_speed(uint64_t bytes_per_second) {
    if (!bytes_per_second || limits::is_link(bytes_per_second)) return Status();
    return bad("link_bytes_per_second", bytes_per_second,
               "which is not between " + std::to_string(limits::kSlowestLink) + " and " +
                   std::to_string(limits::kFastestLink));
}

Status check_options(const DeviceOptions& all) {
    const sh_device_options& options = all.device;
    if (options.page_bytes && !limits::is_page(options.page_bytes))
        return bad("page_bytes", options.page_bytes,
                   "which is not a power of two up to " + std::to_string(limits::kLargestPage));
    SH_TRY(check_flags("options.helpers.flags", all.helpers.flags, {SH_KNOWN(SH_HELPS_OTHERS)}));
    if (options.reserved) return bad("reserved", options.reserved, "which is not 0");
    SH_TRY(check_host_options(all.host));
    const auto address = reinterpret_cast<uint64_t>(options.device_memory);
    if (address % 256) return bad("device_memory", address, "which is not a multiple of 256");
    if ((options.device_memory != nullptr) != (options.device_memory_bytes != 0))
        return bad("device_memory_bytes", options.device_memory_bytes,
                   "which does not go with device_memory: give both, or neither");
    if (options.device_memory_bytes > UINT64_MAX - address)
        return bad("device_memory_bytes", options.device_memory_bytes, "which reaches past the address space");
    return check_link_speed(options.link_bytes_per_second);
}

}  // namespace stagehand::core
