// The library's C interface with owners and exceptions. The rest of the command uses it in this form.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include <stagehand/stagehand.h>

#include "exit_code.h"

namespace stagehand::cli {

// A call of the library failed. what() is what the command was doing, followed by the library's text.
class LibraryError : public CommandError {
public:
    LibraryError(ExitCode code, sh_status status, const std::string& message)
        : CommandError(code, message), status_(status) {}

    sh_status status() const noexcept { return status_; }

private:
    sh_status status_;
};

// The text of the calling thread's last error; the name of `status` if there is none.
std::string library_message(sh_status status);

// Throws LibraryError if `status` is an error. `doing` is put before the library's text.
void check(sh_status status, std::string_view doing);

template <auto close>
struct Closer {
    void operator()(auto* handle) const { close(handle); }
};
using Device = std::unique_ptr<sh_device, Closer<sh_device_close>>;
using Runtime = std::unique_ptr<sh_runtime, Closer<sh_runtime_destroy>>;

// A device as the command line asks for it.
struct DeviceRequest {
    std::string name = "auto";
    std::string backend_options;              // "key=value;key=value"; may be empty
    std::uint64_t budget_bytes = 0;           // 0: the automatic one
    std::uint64_t page_bytes = 0;             // 0: by the budget
    std::uint64_t link_bytes_per_second = 0;  // 0: the library measures it when necessary
    std::string helpers;                      // names with commas between them; may be empty
};

Device open_device(const DeviceRequest& request);
sh_memory_info device_memory(sh_device* device);
sh_device_caps device_capabilities(sh_device* device);
std::uint64_t device_clock_ns(sh_device* device);

Runtime create_runtime(sh_device* device, const char* name);
// Registers bytes in memory as a block. `doing` as for check().
sh_block register_block(sh_runtime* runtime, const void* memory, std::uint64_t bytes, std::uint32_t flags,
                        std::string_view doing);
void set_order(sh_runtime* runtime, const std::vector<sh_use>& uses, std::string_view doing);
sh_plan_info make_plan(sh_runtime* runtime, std::string_view doing,
                       const sh_plan_options& options = SH_PLAN_OPTIONS_INIT);
sh_runtime_stats runtime_stats(sh_runtime* runtime);

// A stream of the device. The destructor waits for the work of the stream.
class Stream {
public:
    explicit Stream(sh_device* device);
    ~Stream();
    Stream(const Stream&) = delete;
    Stream& operator=(const Stream&) = delete;

    sh_stream handle() const { return stream_; }
    void synchronize() const;
    // Keeps the stream busy for `ns` nanoseconds.
    void compute(std::uint64_t ns) const;

private:
    sh_device* device_;
    sh_stream stream_ = 0;
};

// Host memory for copies to and from the device, pinned if the system allows that.
class HostMemory {
public:
    HostMemory(sh_device* device, std::uint64_t bytes);
    ~HostMemory();
    HostMemory(const HostMemory&) = delete;
    HostMemory& operator=(const HostMemory&) = delete;

    void* data() const { return memory_; }
    std::uint64_t bytes() const { return bytes_; }
    bool pinned() const { return pinned_ != 0; }

private:
    sh_device* device_;
    void* memory_ = nullptr;
    std::uint64_t bytes_;
    std::uint32_t pinned_ = 0;
};

}  // namespace stagehand::cli
