#include "core/occupancy/call_times.h"

#include "base/log.h"

namespace stagehand::core {
namespace {

double ms(uint64_t from, uint64_t to) { return static_cast<double>(to - from) / 1e6; }

}  // namespace

void CallTimes::log(const std::string& device, const char* call, uint64_t ns) const {
    log_line(SH_LOG_DEBUG,
             "%s: %s took %.3f ms: earlier work %.3f, host memory %.3f, comparison %.3f, waiting for copies %.3f, "
             "create %.3f, map %.3f, unmap %.3f, destroy %.3f",
             device.c_str(), call, ms(0, ns), ms(0, earlier_work_ns_), ms(0, host_memory_ns_), ms(0, comparison_ns_),
             ms(waited_, passage_.wait_ns()), ms(before_.create_ns, totals_.create_ns),
             ms(before_.map_ns, totals_.map_ns), ms(before_.unmap_ns, totals_.unmap_ns),
             ms(before_.destroy_ns, totals_.destroy_ns));
}

}  // namespace stagehand::core
