// Implements streams, events and copies.
#include <time.h>

#include <cmath>
#include <memory>

#include "gpu/busy.h"
#include "gpu/device.h"
#include "support/last_error.h"

namespace SH_GPU_NAMESPACE {
namespace {

api::Stream native(sh_stream stream) { return reinterpret_cast<api::Stream>(stream); }
api::Event native_event(sh_backend_event event) { return reinterpret_cast<api::Event>(event); }

void add(timespec* time, int64_t ns) {
    time->tv_sec += ns / 1'000'000'000;
    time->tv_nsec += ns % 1'000'000'000;
    if (time->tv_nsec < 1'000'000'000) return;
    time->tv_nsec -= 1'000'000'000;
    time->tv_sec++;
}

// Graphs call this function many times.
void run(void* data) {
    const Launch& launch = *static_cast<const Launch*>(data);
    timespec until = {};
    clock_gettime(CLOCK_MONOTONIC, &until);
    if (launch.fn) launch.fn(launch.user_data);
    if (launch.busy_ns <= 0) return;
    add(&until, launch.busy_ns);
    while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &until, nullptr) != 0) {
    }
}

void run_once(void* data) {
    run(data);
    delete static_cast<const Launch*>(data);
}

bool is_capturing(api::Stream stream) {
    api::CaptureStatus status = {};
    return driver()->stream_is_capturing(stream, &status) == api::kSuccess && status != api::kNotCapturing;
}

sh_status launch_host(Device& device, api::Stream stream, std::unique_ptr<Launch> launch) {
    if (is_capturing(stream)) {
        const std::lock_guard lock(device.captured_mutex);
        device.captured.reserve(device.captured.size() + 1);
        const api::Result result = api::launch_host(*driver(), stream, run, launch.get());
        if (result != api::kSuccess) return failed(result, "launch_host");
        device.captured.push_back(std::move(launch));
        return SH_OK;
    }
    const api::Result result = api::launch_host(*driver(), stream, run_once, launch.get());
    if (result != api::kSuccess) return failed(result, "launch_host");
    (void)launch.release();  // run_once() frees it
    return SH_OK;
}

}  // namespace

sh_status stream_create(sh_backend_device* device, sh_stream* out_stream) {
    SH_GPU_ENTER(device_of(device));
    api::Stream stream = nullptr;
    SH_GPU_TRY(stream_create, &stream, api::kOwnStream);
    *out_stream = reinterpret_cast<sh_stream>(stream);
    return SH_OK;
}

sh_status stream_destroy(sh_backend_device* device, sh_stream stream) {
    SH_GPU_ENTER(device_of(device));
    SH_GPU_TRY(stream_destroy, native(stream));
    return SH_OK;
}

sh_status stream_synchronize(sh_backend_device* device, sh_stream stream) {
    SH_GPU_ENTER(device_of(device));
    SH_GPU_TRY(stream_synchronize, native(stream));
    return SH_OK;
}

sh_status device_synchronize(sh_backend_device* device) {
    SH_GPU_ENTER(device_of(device));
    SH_GPU_TRY(device_synchronize);
    return SH_OK;
}

sh_status stream_wait_event(sh_backend_device* device, sh_stream stream, sh_backend_event event) {
    SH_GPU_ENTER(device_of(device));
    SH_GPU_TRY(stream_wait_event, native(stream), native_event(event), 0);
    return SH_OK;
}

sh_status stream_is_capturing(sh_backend_device* device, sh_stream stream, uint32_t* out_capturing) {
    SH_GPU_ENTER(device_of(device));
    api::CaptureStatus status = {};
    SH_GPU_TRY(stream_is_capturing, native(stream), &status);
    *out_capturing = status != api::kNotCapturing;
    return SH_OK;
}

sh_status stream_launch(sh_backend_device* device, sh_stream stream, void (*fn)(void*), void* user_data,
                        int64_t busy_ns) {
    return support::guarded([&]() -> sh_status {
        SH_GPU_ENTER(device_of(device));
        if (!fn && busy_ns > 0) {
            bool queued = false;
            if (const sh_status status = queue_busy(device_of(device), native(stream), busy_ns, &queued);
                status < 0 || queued)
                return status;
        }
        return launch_host(device_of(device), native(stream), std::make_unique<Launch>(Launch{fn, user_data, busy_ns}));
    });
}

sh_status event_create(sh_backend_device* device, uint32_t timing, sh_backend_event* out_event) {
    SH_GPU_ENTER(device_of(device));
    api::Event event = nullptr;
    SH_GPU_TRY(event_create, &event, timing ? api::kEventTiming : api::kEventPlain);
    *out_event = reinterpret_cast<sh_backend_event>(event);
    return SH_OK;
}

sh_status event_destroy(sh_backend_device* device, sh_backend_event event) {
    SH_GPU_ENTER(device_of(device));
    SH_GPU_TRY(event_destroy, native_event(event));
    return SH_OK;
}

sh_status event_record(sh_backend_device* device, sh_backend_event event, sh_stream stream) {
    SH_GPU_ENTER(device_of(device));
    SH_GPU_TRY(event_record, native_event(event), native(stream));
    return SH_OK;
}

sh_status event_query(sh_backend_device* device, sh_backend_event event, uint32_t* out_done) {
    SH_GPU_ENTER(device_of(device));
    const api::Result result = driver()->event_query(native_event(event));
    if (result != api::kSuccess && result != api::kNotReady) return failed(result, "event_query");
    if (result == api::kNotReady) api::forget_error(*driver());
    *out_done = result == api::kSuccess;
    return SH_OK;
}

sh_status event_synchronize(sh_backend_device* device, sh_backend_event event) {
    SH_GPU_ENTER(device_of(device));
    SH_GPU_TRY(event_synchronize, native_event(event));
    return SH_OK;
}

sh_status event_elapsed(sh_backend_device* device, sh_backend_event begin, sh_backend_event end, int64_t* out_ns) {
    SH_GPU_ENTER(device_of(device));
    float milliseconds = 0;
    SH_GPU_TRY(event_elapsed, &milliseconds, native_event(begin), native_event(end));
    *out_ns = std::llround(static_cast<double>(milliseconds) * 1e6);
    return SH_OK;
}

sh_status copy_to_device(sh_backend_device* device, sh_stream stream, uint64_t to, const void* from, uint64_t bytes) {
    SH_GPU_ENTER(device_of(device));
    if (bytes) SH_GPU_TRY(copy_to_device, native_address(to), const_cast<void*>(from), bytes, native(stream));
    return SH_OK;
}

sh_status copy_to_host(sh_backend_device* device, sh_stream stream, void* to, uint64_t from, uint64_t bytes) {
    SH_GPU_ENTER(device_of(device));
    if (bytes) SH_GPU_TRY(copy_to_host, to, native_address(from), bytes, native(stream));
    return SH_OK;
}

sh_status copy_on_device(sh_backend_device* device, sh_stream stream, uint64_t to, uint64_t from, uint64_t bytes) {
    SH_GPU_ENTER(device_of(device));
    if (!bytes) return SH_OK;
    const api::Result result =
        api::copy_on_device(*driver(), native_address(to), native_address(from), bytes, native(stream));
    return result == api::kSuccess ? SH_OK : failed(result, "copy_on_device");
}

sh_status fill(sh_backend_device* device, sh_stream stream, uint64_t to, uint8_t value, uint64_t bytes) {
    SH_GPU_ENTER(device_of(device));
    if (bytes) SH_GPU_TRY(fill, native_address(to), value, bytes, native(stream));
    return SH_OK;
}

}  // namespace SH_GPU_NAMESPACE
