// Device: one GPU, in the context that all its users in the process share.
#pragma once

#include <memory>
#include <mutex>
#include <vector>

#include <stagehand/backend.h>

#include "gpu/driver.h"

namespace SH_GPU_NAMESPACE {

// The arguments of a launch, for the driver's thread that runs it.
struct Launch {
    void (*fn)(void*);
    void* user_data;
    int64_t busy_ns;
};

// The programs of a module, by format.
struct Programs {
    void* module = nullptr;
    void* functions[5] = {};
};

struct Device {
    api::DeviceIndex index = 0;
    api::Context context = {};
    bool maps_pages = true;  // otherwise memory comes with its addresses, in plain allocations
    std::mutex busy_mutex;   // guards the program of busy.h
    void* busy_module = nullptr;
    void* busy_function = nullptr;
    std::mutex programs_mutex;  // guards the loading of the programs of unpack.h and pack_tiles.h
    Programs unpack_programs, pack_programs, unpack_tiles_programs;
    std::mutex hash_mutex;  // guards the program of content_hash.h
    void* hash_module = nullptr;
    void* hash_function = nullptr;
    api::Address hash_buffer = {};  // for ranges and digests
    std::mutex captured_mutex;
    std::vector<std::unique_ptr<const Launch>>
        captured;  // launches in graphs: the engine may run them any number of times
};

// Makes the device's context current for the scope, on any thread. Calls inside the scope do not disturb a capture that
// the engine has under way on this thread or another thread. No call may be made inside if result() is not kSuccess:
// the thread may have another GPU current, and that GPU would run the call.
class Scope {
public:
    explicit Scope(const Device& device) {
        result_ = api::enter(*driver(), device.context, &before_, &entered_);
        relaxed_ = driver()->exchange_capture_mode && driver()->exchange_capture_mode(&mode_) == api::kSuccess;
    }
    ~Scope() {
        if (relaxed_) (void)driver()->exchange_capture_mode(&mode_);
        if (entered_) api::leave(*driver(), before_);
    }
    api::Result result() const { return result_; }
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;

private:
    api::CaptureMode mode_ = api::kRelaxed;  // inside the scope, the thread's own mode
    api::Context before_ = {};
    api::Result result_ = api::kSuccess;
    bool entered_ = false;
    bool relaxed_ = false;
};

// Opens a scope up to the end of the enclosing block. Leaves the enclosing function if the context cannot be entered.
#define SH_GPU_ENTER(device)   \
    const Scope scope(device); \
    if (scope.result() != api::kSuccess) return failed(scope.result(), "entering the context")

// The addresses and handles of drivers are numbers or pointers.
inline api::Address native_address(uint64_t address) { return (api::Address)(address); }
inline api::Page native_page(sh_backend_page page) { return (api::Page)(page); }

inline Device& device_of(sh_backend_device* device) { return *reinterpret_cast<Device*>(device); }

// See sh_backend_query() of a plugin. Defined in backend.cpp.
sh_status query(uint32_t spi_version, const sh_backend_host* services, const sh_backend** out_backend);

// Defined in memory.cpp.
sh_status memory_info(sh_backend_device* device, uint64_t* out_free, uint64_t* out_total);
sh_status pages_create(sh_backend_device* device, uint64_t page_bytes, uint64_t count, sh_backend_page* out_pages);
sh_status pages_destroy(sh_backend_device* device, uint64_t page_bytes, uint64_t count, const sh_backend_page* pages);
sh_status range_reserve(sh_backend_device* device, uint64_t bytes, uint64_t alignment, uint64_t* out_address);
sh_status range_free(sh_backend_device* device, uint64_t address, uint64_t bytes);
sh_status pages_map(sh_backend_device* device, uint64_t address, uint64_t page_bytes, uint64_t count,
                    const sh_backend_page* pages);
sh_status pages_unmap(sh_backend_device* device, uint64_t address, uint64_t page_bytes, uint64_t count);
sh_status host_register(sh_backend_device* device, void* memory, uint64_t bytes);
sh_status host_unregister(sh_backend_device* device, void* memory);
sh_status host_is_pinned(sh_backend_device* device, const void* memory, uint64_t bytes, uint32_t* out_pinned);

sh_status memory_is_reachable(sh_backend_device* device, uint64_t address, uint64_t bytes, uint32_t* out_reachable);

// Defined in queue.cpp.
sh_status stream_create(sh_backend_device* device, sh_stream* out_stream);
sh_status stream_destroy(sh_backend_device* device, sh_stream stream);
sh_status stream_synchronize(sh_backend_device* device, sh_stream stream);
sh_status device_synchronize(sh_backend_device* device);
sh_status stream_wait_event(sh_backend_device* device, sh_stream stream, sh_backend_event event);
sh_status stream_is_capturing(sh_backend_device* device, sh_stream stream, uint32_t* out_capturing);
sh_status stream_launch(sh_backend_device* device, sh_stream stream, void (*fn)(void*), void* user_data,
                        int64_t busy_ns);
sh_status event_create(sh_backend_device* device, uint32_t timing, sh_backend_event* out_event);
sh_status event_destroy(sh_backend_device* device, sh_backend_event event);
sh_status event_record(sh_backend_device* device, sh_backend_event event, sh_stream stream);
sh_status event_query(sh_backend_device* device, sh_backend_event event, uint32_t* out_done);
sh_status event_synchronize(sh_backend_device* device, sh_backend_event event);
sh_status event_elapsed(sh_backend_device* device, sh_backend_event begin, sh_backend_event end, int64_t* out_ns);
sh_status copy_to_device(sh_backend_device* device, sh_stream stream, uint64_t to, const void* from, uint64_t bytes);
sh_status copy_to_host(sh_backend_device* device, sh_stream stream, void* to, uint64_t from, uint64_t bytes);
sh_status copy_on_device(sh_backend_device* device, sh_stream stream, uint64_t to, uint64_t from, uint64_t bytes);
sh_status fill(sh_backend_device* device, sh_stream stream, uint64_t to, uint8_t value, uint64_t bytes);

}  // namespace SH_GPU_NAMESPACE
