#include "core/device/device_options.h"

#include <string>

#include "backend/limits.h"
#include "transfer/staging/staging_size.h"

namespace stagehand::core {
namespace {

Status bad(const char* option, uint64_t value, const std::string& wanted) {
    return Status(SH_ERROR_INVALID_ARGUMENT,
                  std::string("options.") + option + " is " + std::to_string(value) + ", " + wanted);
}

}  // namespace

Status check_link_speed(uint64_t bytes_per_second) {
    if (!bytes_per_second || limits::is_link(bytes_per_second)) return Status();
    return bad("link_bytes_per_second", bytes_per_second,
               "which is not between " + std::to_string(limits::kSlowestLink) + " and " +
                   std::to_string(limits::kFastestLink));
}

Status check_options(const sh_device_options& options) {
    if (options.staging_threads > transfer::kMostThreads)
        return bad("staging_threads", options.staging_threads,
                   "which is more than " + std::to_string(transfer::kMostThreads));
    if (options.staging_bytes > transfer::kLargestRing)
        return bad("staging_bytes", options.staging_bytes,
                   "which is more than " + std::to_string(transfer::kLargestRing));
    if (options.page_bytes && !limits::is_page(options.page_bytes))
        return bad("page_bytes", options.page_bytes,
                   "which is not a power of two up to " + std::to_string(limits::kLargestPage));
    return check_link_speed(options.link_bytes_per_second);
}

}  // namespace stagehand::core
