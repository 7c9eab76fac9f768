// BackendDevice: an open device of a backend, with the table's functions as methods that return Status.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>

#include <stagehand/backend.h>

#include "backend/host_policy.h"
#include "backend/lent_memory.h"
#include "backend/thread_stream.h"
#include "base/status.h"

namespace stagehand {

// Returns the backend's text of the calling thread's last failure. Returns a default text if the backend has none.
const char* error_text(const sh_backend& table);

// Owns the open device, and closes it when destroyed. Not movable, so that its users may keep a pointer to it.
class BackendDevice {
public:
    BackendDevice(const sh_backend& table, sh_backend_device* device, const sh_backend_device_info& info,
                  const HostPolicy& host = {})
        : table_(table),
          device_(device),
          info_(info),
          host_(host),
          thread_handle_(info.thread_stream ? info.thread_stream : thread_stream::kNone) {}
    ~BackendDevice() { table_.device_close(device_); }
    BackendDevice(const BackendDevice&) = delete;
    BackendDevice& operator=(const BackendDevice&) = delete;

    const sh_backend& table() const { return table_; }
    const sh_backend_device_info& info() const { return info_; }
    const HostPolicy& host_policy() const { return host_; }
    bool has(uint32_t flag) const { return (info_.flags & flag) != 0; }
    // If false, each allocation brings its own addresses, so the addresses change with the memory.
    bool maps_pages() const { return has(SH_BACKEND_FIXED_ADDRESSES); }
    const char* name() const { return table_.name; }

    uint64_t now_ns() const;

    // Streams are named by their handles. The default streams of the threads are an exception: one handle means all of
    // them, so each has a name of its own (thread_stream.h).
    sh_stream thread_handle() const { return thread_handle_; }
    // Returns false for the default stream of another thread.
    static bool is_of_this_thread(sh_stream name) {
        return !thread_stream::is_name(name) || name == thread_stream::of_this_thread();
    }

    Status memory_info(uint64_t* free, uint64_t* total);

    Status pages_create(uint64_t page_bytes, uint64_t count, sh_backend_page* pages) {
        return check(table_.pages_create(device_, page_bytes, count, pages), "pages_create");
    }
    Status pages_destroy(uint64_t page_bytes, uint64_t count, const sh_backend_page* pages) {
        return check(table_.pages_destroy(device_, page_bytes, count, pages), "pages_destroy");
    }
    // Takes device memory from this range instead of the driver, from now on. Only if the device does not map pages.
    void lend(uint64_t address, uint64_t bytes) { lent_ = std::make_unique<LentMemory>(address, bytes); }
    Status range_reserve(uint64_t bytes, uint64_t alignment, uint64_t* address) {
        if (lent_) return lent_->take(bytes, std::max<uint64_t>(alignment, 256), address);
        return check(table_.range_reserve(device_, bytes, alignment, address), "range_reserve");
    }
    Status range_free(uint64_t address, uint64_t bytes) {
        if (lent_) return lent_->give_back(address, bytes);
        return check(table_.range_free(device_, address, bytes), "range_free");
    }
    Status pages_map(uint64_t address, uint64_t page_bytes, uint64_t count, const sh_backend_page* pages) {
        return check(table_.pages_map(device_, address, page_bytes, count, pages), "pages_map");
    }
    Status pages_unmap(uint64_t address, uint64_t page_bytes, uint64_t count) {
        return check(table_.pages_unmap(device_, address, page_bytes, count), "pages_unmap");
    }

    Status host_register(void* memory, uint64_t bytes) {
        return check(table_.host_register(device_, memory, bytes), "host_register");
    }
    Status host_unregister(void* memory) { return check(table_.host_unregister(device_, memory), "host_unregister"); }
    Status host_is_pinned(const void* memory, uint64_t bytes, uint32_t* pinned) {
        return check(table_.host_is_pinned(device_, memory, bytes, pinned), "host_is_pinned");
    }

    Status stream_create(sh_stream* stream) { return check(table_.stream_create(device_, stream), "stream_create"); }
    Status stream_destroy(sh_stream stream) { return check(table_.stream_destroy(device_, stream), "stream_destroy"); }
    Status stream_synchronize(sh_stream stream) {
        SH_TRY(to_handle(&stream));
        return check(table_.stream_synchronize(device_, stream), "stream_synchronize");
    }
    Status stream_wait_event(sh_stream stream, sh_backend_event event) {
        SH_TRY(to_handle(&stream));
        return check(table_.stream_wait_event(device_, stream, event), "stream_wait_event");
    }
    Status stream_launch(sh_stream stream, void (*fn)(void*), void* user_data, int64_t busy_ns) {
        return check(table_.stream_launch(device_, stream, fn, user_data, busy_ns), "stream_launch");
    }

    Status event_create(bool timing, sh_backend_event* event) {
        return check(table_.event_create(device_, timing, event), "event_create");
    }
    Status event_destroy(sh_backend_event event) {
        return check(table_.event_destroy(device_, event), "event_destroy");
    }
    Status event_record(sh_backend_event event, sh_stream stream) {
        SH_TRY(to_handle(&stream));
        return check(table_.event_record(device_, event, stream), "event_record");
    }
    Status event_query(sh_backend_event event, uint32_t* done) {
        return check(table_.event_query(device_, event, done), "event_query");
    }
    Status event_synchronize(sh_backend_event event) {
        return check(table_.event_synchronize(device_, event), "event_synchronize");
    }
    Status event_elapsed(sh_backend_event begin, sh_backend_event end, int64_t* ns) {
        return check(table_.event_elapsed(device_, begin, end, ns), "event_elapsed");
    }

    Status copy_to_device(sh_stream stream, uint64_t to, const void* from, uint64_t bytes) {
        return check(table_.copy_to_device(device_, stream, to, from, bytes), "copy_to_device");
    }
    Status copy_on_device(sh_stream stream, uint64_t to, uint64_t from, uint64_t bytes) {
        return check(table_.copy_on_device(device_, stream, to, from, bytes), "copy_on_device");
    }
    Status copy_to_host(sh_stream stream, void* to, uint64_t from, uint64_t bytes) {
        return check(table_.copy_to_host(device_, stream, to, from, bytes), "copy_to_host");
    }
    Status fill(sh_stream stream, uint64_t to, uint8_t value, uint64_t bytes) {
        return check(table_.fill(device_, stream, to, value, bytes), "fill");
    }
    bool reaches_memory() const { return table_.memory_is_reachable != nullptr; }
    Status memory_is_reachable(uint64_t address, uint64_t bytes, uint32_t* reachable) {
        return check(table_.memory_is_reachable(device_, address, bytes, reachable), "memory_is_reachable");
    }
    bool has_device_synchronize() const { return table_.device_synchronize != nullptr; }
    Status device_synchronize() { return check(table_.device_synchronize(device_), "device_synchronize"); }
    bool has_contents_hash() const { return table_.contents_hash != nullptr; }
    Status contents_hash(sh_stream stream, uint64_t count, const sh_backend_range* ranges, sh_backend_digest* digests) {
        return check(table_.contents_hash(device_, stream, count, ranges, digests), "contents_hash");
    }
    bool unpacks() const { return table_.unpack != nullptr; }
    bool packs_tiles() const { return table_.pack_tiles && table_.unpack_tiles; }
    Status pack_tiles(sh_stream stream, const sh_backend_tiles& tiles) {
        return check(table_.pack_tiles(device_, stream, &tiles), "pack_tiles");
    }
    Status unpack_tiles(sh_stream stream, const sh_backend_tiles& tiles) {
        return check(table_.unpack_tiles(device_, stream, &tiles), "unpack_tiles");
    }
    Status unpack(sh_stream stream, const sh_backend_packed& packed) {
        return check(table_.unpack(device_, stream, &packed), "unpack");
    }
    bool has_graphs() const { return table_.stream_is_capturing != nullptr; }
    Status stream_is_capturing(sh_stream stream, uint32_t* capturing) {
        SH_TRY(to_handle(&stream));
        return check(table_.stream_is_capturing(device_, stream, capturing), "stream_is_capturing");
    }
    Status thread_begin() {
        return table_.thread_begin ? check(table_.thread_begin(device_), "thread_begin") : Status();
    }

private:
    Status check(sh_status code, const char* call) const { return code >= 0 ? Status() : failure(code, call); }
    Status failure(sh_status code, const char* call) const noexcept;
    Status to_handle(sh_stream* stream) const {
        return thread_stream::is_name(*stream) ? to_thread_handle(stream) : Status();
    }
    Status to_thread_handle(sh_stream* stream) const;

    const sh_backend& table_;
    sh_backend_device* device_;
    sh_backend_device_info info_;
    const HostPolicy host_;
    std::unique_ptr<LentMemory> lent_;
    sh_stream thread_handle_;
};

}  // namespace stagehand
