#include "core/spill/spiller_options.h"

#include <string>

#include "base/flags.h"
#include "platform/host_memory.h"

namespace stagehand::core {
namespace {

constexpr uint64_t kDefaultLeast = 4096;  // a smaller copy costs its latency, and frees less than an allocator's unit
constexpr uint64_t kDefaultInFlight = uint64_t(256) << 20;  // about 5 ms of a PCIe link
// Programs that pack wait for programs of the engine, and those must not wait for them in turn.
constexpr uint64_t kDefaultPackedInFlight = uint64_t(1) << 30;
constexpr uint64_t kLargestClass = uint64_t(1) << 40;
constexpr uint64_t kMostBuffers = uint64_t(1) << 32;

Status bad_option(const std::string& text) { return Status(SH_ERROR_INVALID_ARGUMENT, "options." + text); }

uint64_t or_default(uint64_t value, uint64_t otherwise) { return value ? value : otherwise; }
uint32_t or_unbounded(uint32_t value) { return value ? value : UINT32_MAX; }

Status read_limits(const sh_spiller_options& options, policy::KeepLimits* out) {
    SH_TRY(check_flags("options.flags", options.flags,
                       {SH_KNOWN(SH_SPILLER_KEEP_BYTES), SH_KNOWN(SH_SPILLER_CHECKSUMS), SH_KNOWN(SH_SPILLER_PACK)}));
    if (options.keep_bytes && !(options.flags & SH_SPILLER_KEEP_BYTES))
        return bad_option("keep_bytes is given without SH_SPILLER_KEEP_BYTES in flags");
    if (options.low_watermark_bytes > options.high_watermark_bytes)
        return bad_option("low_watermark_bytes is " + std::to_string(options.low_watermark_bytes) +
                          ", above high_watermark_bytes " + std::to_string(options.high_watermark_bytes));
    if (options.high_watermark_bytes) {
        out->high_bytes = options.high_watermark_bytes;
        out->low_bytes =
            or_default(options.low_watermark_bytes, options.high_watermark_bytes - options.high_watermark_bytes / 4);
    }
    if (options.flags & SH_SPILLER_KEEP_BYTES) out->keep_bytes = options.keep_bytes;
    return Status();
}

Status read_classes(const std::vector<sh_spill_class>& classes, uint64_t limit, std::vector<transfer::SizeClass>* out) {
    uint64_t sum = 0, before = 0;
    for (size_t i = 0; i < classes.size(); i++) {
        const sh_spill_class& size_class = classes[i];
        const std::string name = "classes[" + std::to_string(i) + "].";
        if (!size_class.bytes || size_class.bytes > kLargestClass)
            return bad_option(name + "bytes is " + std::to_string(size_class.bytes) + ", not 1 to 2^40");
        if (size_class.bytes <= before) return bad_option(name + "bytes is not above that of the class before");
        if (size_class.count > kMostBuffers) return bad_option(name + "count is above 2^32");
        if (size_class.count > (limit - sum) / size_class.bytes)
            return bad_option("classes ask for more than pool_bytes " + std::to_string(limit));
        sum += size_class.bytes * size_class.count;
        before = size_class.bytes;
        out->push_back({size_class.bytes, size_class.count});
    }
    return Status();
}

}  // namespace

Status read_spiller_options(const sh_spiller_options& options, const std::vector<sh_spill_class>& classes,
                            SpillerOptions* out) {
    SH_TRY(read_limits(options, &out->keep));
    out->least_bytes = or_default(options.least_bytes, kDefaultLeast);
    const uint64_t in_flight = options.flags & SH_SPILLER_PACK ? kDefaultPackedInFlight : kDefaultInFlight;
    out->to_host_bytes = or_default(options.to_host_bytes, in_flight);
    out->to_device_bytes = or_default(options.to_device_bytes, in_flight);
    out->to_host_copies = or_unbounded(options.to_host_copies);
    out->to_device_copies = or_unbounded(options.to_device_copies);
    out->pool_bytes = or_default(options.pool_bytes, platform::read_host_memory().available_bytes / 2);
    out->packs = options.flags & SH_SPILLER_PACK;
    out->checksums = options.flags & SH_SPILLER_CHECKSUMS;
    return read_classes(classes, out->pool_bytes, &out->classes);
}

}  // namespace stagehand::core
