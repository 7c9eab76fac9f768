#include "plugins/table_check.h"

#include <algorithm>
#include <cstddef>
#include <cstring>

namespace stagehand::plugins {
namespace {

struct Member {
    size_t offset;
    const char* name;
};

#define SH_MEMBER(name) \
    { offsetof(sh_backend, name), #name }
constexpr Member kRequired[] = {
    SH_MEMBER(probe),
    SH_MEMBER(device_open),
    SH_MEMBER(device_close),
    SH_MEMBER(last_error),
    SH_MEMBER(memory_info),
    SH_MEMBER(pages_create),
    SH_MEMBER(pages_destroy),
    SH_MEMBER(range_reserve),
    SH_MEMBER(range_free),
    SH_MEMBER(pages_map),
    SH_MEMBER(pages_unmap),
    SH_MEMBER(host_register),
    SH_MEMBER(host_unregister),
    SH_MEMBER(host_is_pinned),
    SH_MEMBER(stream_create),
    SH_MEMBER(stream_destroy),
    SH_MEMBER(stream_synchronize),
    SH_MEMBER(stream_wait_event),
    SH_MEMBER(stream_launch),
    SH_MEMBER(event_create),
    SH_MEMBER(event_destroy),
    SH_MEMBER(event_record),
    SH_MEMBER(event_query),
    SH_MEMBER(event_synchronize),
    SH_MEMBER(event_elapsed),
    SH_MEMBER(copy_to_device),
    SH_MEMBER(copy_to_host),
    SH_MEMBER(copy_on_device),
    SH_MEMBER(fill),
};
#undef SH_MEMBER

// The first optional member: a table may end before it.
constexpr size_t kLeastSize = offsetof(sh_backend, clock);
static_assert(offsetof(sh_backend, probe) + sizeof kRequired / sizeof kRequired[0] * sizeof(void*) ==
                  kLeastSize,
              "a required member is not checked");

Status refused(std::string reason) { return Status(SH_ERROR_BACKEND_LOAD, std::move(reason)); }

}  // namespace

Status check_table(const sh_backend* table, const std::string& name, const sh_backend** out_backend) {
    if (!table) return refused("it answered without a table");
    // The version first: of another version nothing else is known.
    if (table->spi_version != SH_BACKEND_SPI_VERSION) {
        return refused("its table is of version " + std::to_string(table->spi_version) +
                       " of the interface, wanted is " + std::to_string(SH_BACKEND_SPI_VERSION));
    }
    if (table->struct_size < kLeastSize) {
        return refused("its table has " + std::to_string(table->struct_size) + " bytes, fewer than the " +
                       std::to_string(kLeastSize) + " that are required");
    }
    if (!table->name || !table->version) return refused("its table does not tell its name and version");
    if (table->name != name)
        return refused(std::string("it is the backend '") + table->name + "', not '" + name + "'");
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

}  // namespace stagehand::plugins
