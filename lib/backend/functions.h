// The functions of a backend in the order of its table, for what is made from all of them: tables, the check of a
// table, and the fault backend's list of calls.
#pragma once

// clang-format off
#define SH_BACKEND_DEVICE_FUNCTIONS(F) \
    F(memory_info) F(pages_create) F(pages_destroy) F(range_reserve) F(range_free) F(pages_map) F(pages_unmap) \
    F(host_register) F(host_unregister) F(host_is_pinned) F(stream_create) F(stream_destroy) \
    F(stream_synchronize) F(stream_wait_event) F(stream_launch) F(event_create) F(event_destroy) F(event_record) \
    F(event_query) F(event_synchronize) F(event_elapsed) F(copy_to_device) F(copy_to_host) F(copy_on_device) \
    F(fill)

#define SH_BACKEND_REQUIRED_FUNCTIONS(F) \
    F(probe) F(device_open) F(device_close) F(last_error) SH_BACKEND_DEVICE_FUNCTIONS(F)

// All but the clock, which returns no status.
#define SH_BACKEND_OPTIONAL_FUNCTIONS(F) \
    F(thread_begin) F(stream_is_capturing) F(memory_is_reachable) F(device_synchronize) F(contents_hash) \
    F(unpack) F(pack_tiles) F(unpack_tiles)
// clang-format on

// A row of a table whose functions have the names of its members.
#define SH_BACKEND_ROW(name) .name = name,
