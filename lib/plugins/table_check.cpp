#include "plugins/table_check.h"

#include <algorithm>
#include <cstddef>
#include <cstring>

#include "backend/functions.h"
#include "base/limits.h"
#include "plugins/load_error.h"

namespace stagehand::plugins {
namespace {

struct Member {
    size_t offset;
    const char* name;
};

#define SH_MEMBER(name) {offsetof(sh_backend, name), #name},
constexpr Member kRequired[] = {SH_BACKEND_REQUIRED_FUNCTIONS(SH_MEMBER)};
#undef SH_MEMBER

// A table may end before the first optional member.
constexpr size_t kLeastSize = offsetof(sh_backend, clock);
static_assert(offsetof(sh_backend, probe) + sizeof kRequired / sizeof kRequired[0] * sizeof(void*) == kLeastSize,
              "a required member is not checked");

// The size of the struct in the first version of the interface.
constexpr size_t kLeastDeviceSize = offsetof(sh_backend_device_info, reserved) + sizeof(uint32_t);

}  // namespace

Status check_table(const sh_backend* table, const std::string& name, const sh_backend** out_backend) {
    if (!table) return refused("it returned no table");
    // The version comes first, because nothing else is known of a table of another version.
    if (table->spi_version != SH_BACKEND_SPI_VERSION) {
        return refused("its table has version " + std::to_string(table->spi_version) +
                       " of the interface, but the library needs version " + std::to_string(SH_BACKEND_SPI_VERSION));
    }
    if (table->struct_size < kLeastSize) {
        return refused("its table has " + std::to_string(table->struct_size) + " bytes, fewer than the " +
                       std::to_string(kLeastSize) + " that are required");
    }
    if (!table->name || !table->version) return refused("its table has no name or no version");
    if (table->name != name) return refused(std::string("it is the backend '") + table->name + "', not '" + name + "'");
    for (const Member& member : kRequired) {
        void* value = nullptr;
        std::memcpy(&value, reinterpret_cast<const char*>(table) + member.offset, sizeof value);
        if (!value) return refused(std::string("its table lacks the required member ") + member.name);
    }
    auto* const complete = new sh_backend();
    std::memcpy(complete, table, std::min<size_t>(table->struct_size, sizeof *complete));
    complete->struct_size = sizeof *complete;
    *out_backend = complete;
    return Status();
}

Status check_device(const std::string& backend, const sh_backend_device_info& info) {
    constexpr uint32_t known = SH_BACKEND_FIXED_ADDRESSES | SH_BACKEND_HOST_ADDRESSABLE | SH_BACKEND_CONTENTLESS |
                               SH_BACKEND_VIRTUAL_TIME | SH_BACKEND_IS_GPU | SH_BACKEND_PEERS;
    const auto bad = [&](const char* field, uint64_t value, const std::string& wanted) {
        return Status(SH_ERROR_BACKEND, "backend " + backend + " reports a wrong device: " + field + " is " +
                                            std::to_string(value) + ", expected " + wanted);
    };
    const std::string page = "a power of two up to " + std::to_string(limits::kLargestPage);
    if (info.struct_size < kLeastDeviceSize || info.struct_size > sizeof info)
        return bad("struct_size", info.struct_size,
                   "between " + std::to_string(kLeastDeviceSize) + " and " + std::to_string(sizeof info));
    if (info.flags & ~known) return bad("flags", info.flags, "only known flags");
    if (!std::memchr(info.bus_id, 0, sizeof info.bus_id)) return bad("bus_id", 0, "a text with an end");
    if (!std::memchr(info.description, 0, sizeof info.description))
        return Status(SH_ERROR_BACKEND,
                      "backend " + backend + " reports a wrong device: description is not terminated");
    if (!info.total_bytes) return bad("total_bytes", info.total_bytes, "more than 0");
    if (!limits::is_page(info.granularity_bytes)) return bad("granularity_bytes", info.granularity_bytes, page);
    if (!std::has_single_bit(info.largest_page_bytes) || info.largest_page_bytes < info.granularity_bytes)
        return bad("largest_page_bytes", info.largest_page_bytes,
                   "a power of two of at least granularity_bytes (" + std::to_string(info.granularity_bytes) + ")");
    if (info.largest_handle_bytes &&
        (!limits::is_page(info.largest_handle_bytes) || info.largest_handle_bytes < info.largest_page_bytes))
        return bad("largest_handle_bytes", info.largest_handle_bytes,
                   "0 or a power of two from largest_page_bytes (" + std::to_string(info.largest_page_bytes) + ") to " +
                       std::to_string(limits::kLargestPage));
    if (info.link_bytes_per_second && !limits::is_link(info.link_bytes_per_second))
        return bad(
            "link_bytes_per_second", info.link_bytes_per_second,
            "0 or between " + std::to_string(limits::kSlowestLink) + " and " + std::to_string(limits::kFastestLink));
    if (info.copy_latency_ns > limits::kLongestLatency)
        return bad("copy_latency_ns", info.copy_latency_ns, "at most " + std::to_string(limits::kLongestLatency));
    if (info.host_node > limits::kMostHostNodes)
        return bad("host_node", info.host_node, "at most " + std::to_string(limits::kMostHostNodes));
    return Status();
}

}  // namespace stagehand::plugins
