#include "library.h"

#include <fmt/format.h>

namespace stagehand::cli {

namespace {

ExitCode exit_code_of(sh_status status) {
    switch (status) {
        case SH_ERROR_IO:
            return ExitCode::output;
        case SH_ERROR_SOURCE:
        case SH_ERROR_CALLBACK:
        case SH_ERROR_CANCELLED:
        case SH_ERROR_HELD:
        case SH_ERROR_RUNTIME_LOST:
        case SH_ERROR_INTERNAL:
            return ExitCode::failure;
        default:
            return ExitCode::device;
    }
}

}  // namespace

std::string library_message(sh_status status) {
    std::string text(sh_last_error(nullptr, 0), '\0');
    if (text.empty()) return sh_status_string(status);
    // One byte more for the NUL, which std::string holds behind its characters.
    sh_last_error(text.data(), text.size() + 1);
    for (char& character : text)
        if (character == '\n' || character == '\r') character = ' ';
    return text;
}

void check(sh_status status, std::string_view doing) {
    if (status >= 0) return;
    throw LibraryError(exit_code_of(status), status, fmt::format("{}: {}", doing, library_message(status)));
}

Device open_device(const DeviceRequest& request) {
    sh_device_options options = SH_DEVICE_OPTIONS_INIT;
    options.budget_bytes = request.budget_bytes;
    options.page_bytes = request.page_bytes;
    options.link_bytes_per_second = request.link_bytes_per_second;
    options.backend_options = request.backend_options.empty() ? nullptr : request.backend_options.c_str();
    sh_helper_options helpers = SH_HELPER_OPTIONS_INIT;
    helpers.devices = request.helpers.c_str();
    options.helpers = &helpers;
    sh_device* device = nullptr;
    const sh_status status = sh_device_open(request.name.c_str(), &options, &device);
    if (status < 0) {
        // An invalid argument comes from the command line here: an option that the backend does not know.
        const bool users = status == SH_ERROR_INVALID_ARGUMENT;
        throw LibraryError(users ? ExitCode::usage : exit_code_of(status), status,
                           fmt::format("device {}: {}", request.name, library_message(status)));
    }
    return Device(device);
}

sh_memory_info device_memory(sh_device* device) {
    auto info = sh_sized<sh_memory_info>();
    check(sh_device_get_memory(device, &info), "device memory");
    return info;
}

sh_device_caps device_capabilities(sh_device* device) {
    auto caps = sh_sized<sh_device_caps>();
    check(sh_device_get_caps(device, &caps), "device capabilities");
    return caps;
}

std::uint64_t device_clock_ns(sh_device* device) {
    std::uint64_t ns = 0;
    check(sh_device_get_clock(device, &ns), "device clock");
    return ns;
}

Runtime create_runtime(sh_device* device, const char* name) {
    sh_runtime_options options = SH_RUNTIME_OPTIONS_INIT;
    options.name = name;
    sh_runtime* runtime = nullptr;
    check(sh_runtime_create(device, &options, &runtime), "runtime");
    return Runtime(runtime);
}

sh_block register_block(sh_runtime* runtime, const void* memory, std::uint64_t bytes, std::uint32_t flags,
                        std::string_view doing) {
    sh_segment segment = SH_SEGMENT_INIT;
    segment.kind = SH_SOURCE_POINTER;
    segment.bytes = bytes;
    segment.pointer = memory;
    sh_block_desc desc = SH_BLOCK_DESC_INIT;
    desc.flags = flags;
    desc.bytes = bytes;
    desc.segments = &segment;
    desc.segment_count = 1;
    sh_block block = 0;
    check(sh_register_blocks(runtime, &desc, 1, &block), doing);
    return block;
}

void set_order(sh_runtime* runtime, const std::vector<sh_use>& uses, std::string_view doing) {
    check(sh_set_schedule(runtime, uses.data(), uses.size()), doing);
}

sh_plan_info make_plan(sh_runtime* runtime, std::string_view doing, const sh_plan_options& options) {
    auto info = sh_sized<sh_plan_info>();
    check(sh_plan(runtime, &options, &info), doing);
    return info;
}

sh_runtime_stats runtime_stats(sh_runtime* runtime) {
    auto stats = sh_sized<sh_runtime_stats>();
    check(sh_runtime_get_stats(runtime, &stats), "statistics");
    return stats;
}

Stream::Stream(sh_device* device) : device_(device) { check(sh_stream_create(device, &stream_), "compute stream"); }

Stream::~Stream() { sh_stream_destroy(device_, stream_); }

void Stream::synchronize() const { check(sh_stream_synchronize(device_, stream_), "compute stream"); }

void Stream::compute(std::uint64_t ns) const {
    check(sh_stream_launch(device_, stream_, nullptr, nullptr, static_cast<std::int64_t>(ns)), "compute stream");
}

HostMemory::HostMemory(sh_device* device, std::uint64_t bytes) : device_(device), bytes_(bytes) {
    check(sh_host_alloc(device, bytes, &memory_, &pinned_), "host memory");
}

HostMemory::~HostMemory() { sh_host_free(device_, memory_); }

}  // namespace stagehand::cli
