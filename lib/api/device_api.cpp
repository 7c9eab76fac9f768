// Devices, their streams and their pinned host memory.
#include "api/control_api.h"
#include "api/guard.h"
#include "base/once_more.h"
#include "plugins/backends.h"
#include "telemetry/trace.h"

using namespace stagehand;
using namespace stagehand::api;

namespace {

// Two opens of one device are one handle, counted: the table is searched under this mutex.
std::mutex& opening() {
    static std::mutex* const instance = new std::mutex;
    return *instance;
}

std::vector<std::pair<core::Device*, sh_device*>>& open_handles() {
    static auto* const instance = new std::vector<std::pair<core::Device*, sh_device*>>;
    return *instance;
}

Status missing(const char* name) { return Status(SH_ERROR_INVALID_ARGUMENT, std::string(name) + " is NULL"); }

template <size_t kBytes>
void copy_text(char (&to)[kBytes], const std::string& from) {
    const size_t bytes = std::min(kBytes - 1, from.size());
    from.copy(to, bytes);
    to[bytes] = 0;
}

void describe(const plugins::ListedBackend& backend, sh_backend_info* to) {
    to->status = backend.status.code();
    to->device_count = backend.device_count;
    to->built_in = backend.built_in;
    copy_text(to->name, backend.name);
    copy_text(to->path, backend.path);
    copy_text(to->reason, backend.status.ok() ? "" : backend.status.text());
}

Status check_stream(sh_stream stream) {
    if (stream != SH_STREAM_HOST) return Status();
    return Status(SH_ERROR_INVALID_ARGUMENT, "stream is SH_STREAM_HOST, which has no queue");
}

}  // namespace

extern "C" {

sh_status sh_device_open(const char* name, const sh_device_options* options, sh_device** out_device) {
    return guarded([&] {
        if (!name) return missing("name");
        if (!out_device) return missing("out_device");
        core::DeviceOptions wanted;
        SH_TRY(take_options(options, "options", &wanted.device));
        SH_TRY(take_options(wanted.device.host, "options.host", &wanted.host));
        SH_TRY(take_options(wanted.device.helpers, "options.helpers", &wanted.helpers));
        telemetry::trace_start_from_environment();
        control_start_from_environment();
        std::lock_guard opens(opening());
        std::shared_ptr<core::Device> device;
        SH_TRY(core::Device::open(name, wanted, &device));
        for (const auto& [open, handle] : open_handles()) {
            core::Lock lock;
            auto* slot = open == device.get() ? devices().lock(handle, &lock) : nullptr;
            if (!slot) continue;
            slot->object->opened++;
            *out_device = handle;
            return Status();
        }
        open_handles().reserve(open_handles().size() + 1);
        core::Device* const raw = device.get();
        auto* const handle =
            static_cast<sh_device*>(devices().insert(std::make_shared<OpenDevice>(OpenDevice{std::move(device), 1})));
        open_handles().emplace_back(raw, handle);
        *out_device = handle;
        return Status();
    });
}

void sh_device_close(sh_device* device) {
    (void)guarded([&] {
        if (!device) return Status();
        std::lock_guard opens(opening());
        core::Lock lock;
        auto* slot = devices().lock(device, &lock);
        if (!slot) return Status(SH_ERROR_INVALID_HANDLE, "device is not an open device");
        if (--slot->object->opened) return Status();
        std::shared_ptr<OpenDevice> closed = devices().remove(*slot);
        lock.unlock();
        devices().recycle(*slot);
        std::erase_if(open_handles(), [&](const auto& open) { return open.second == device; });
        closed.reset();
        return Status();
    });
}

sh_status sh_device_get_memory(sh_device* device, sh_memory_info* out_info) {
    return guarded([&] {
        std::shared_ptr<core::Device> found;
        SH_TRY(find_device(device, &found));
        return fill_struct(out_info, "out_info", [&](sh_memory_info* info) { return found->memory(info); });
    });
}

sh_status sh_device_set_budget(sh_device* device, uint64_t budget_bytes) {
    return guarded([&] {
        std::shared_ptr<core::Device> found;
        SH_TRY(find_device(device, &found));
        return found->set_budget(budget_bytes);
    });
}

sh_status sh_device_get_caps(sh_device* device, sh_device_caps* out_caps) {
    return guarded([&] {
        std::shared_ptr<core::Device> found;
        SH_TRY(find_device(device, &found));
        return fill_struct(out_caps, "out_caps", [&](sh_device_caps* caps) {
            found->capabilities(caps);
            return Status();
        });
    });
}

sh_status sh_device_get_clock(sh_device* device, uint64_t* out_ns) {
    return guarded([&] {
        std::shared_ptr<core::Device> found;
        SH_TRY(find_device(device, &found));
        if (!out_ns) return missing("out_ns");
        *out_ns = found->backend().now_ns();
        return Status();
    });
}

sh_status sh_backend_list(sh_backend_info* infos, uint64_t capacity, uint64_t* out_count) {
    return guarded([&] {
        if (!out_count) return missing("out_count");
        OutputArray<sh_backend_info> to;
        SH_TRY(to.open(infos, capacity, {"infos", "capacity"}));
        const auto all = plugins::list_backends();
        for (size_t i = 0; i < std::min<uint64_t>(capacity, all.size()); i++) describe(all[i], to.get()[i]);
        to.give(std::min<uint64_t>(capacity, all.size()));
        *out_count = all.size();
        return Status();
    });
}

sh_status sh_stream_create(sh_device* device, sh_stream* out_stream) {
    return guarded([&] {
        std::shared_ptr<core::Device> found;
        SH_TRY(find_device(device, &found));
        if (!out_stream) return missing("out_stream");
        return found->backend().stream_create(out_stream);
    });
}

void sh_stream_destroy(sh_device* device, sh_stream stream) {
    (void)guarded([&] {
        if (stream == SH_STREAM_HOST) return Status();
        std::shared_ptr<core::Device> found;
        SH_TRY(find_device(device, &found));
        SH_TRY(once_more([&] { return found->backend().stream_synchronize(stream); }));
        return once_more([&] { return found->backend().stream_destroy(stream); });
    });
}

sh_status sh_stream_synchronize(sh_device* device, sh_stream stream) {
    return guarded([&] {
        std::shared_ptr<core::Device> found;
        SH_TRY(find_device(device, &found));
        SH_TRY(check_stream(stream));
        return found->backend().stream_synchronize(stream);
    });
}

sh_status sh_stream_launch(sh_device* device, sh_stream stream, sh_stream_fn fn, void* user_data, int64_t busy_ns) {
    return guarded([&] {
        std::shared_ptr<core::Device> found;
        SH_TRY(find_device(device, &found));
        SH_TRY(check_stream(stream));
        return found->backend().stream_launch(stream, fn, user_data, busy_ns);
    });
}

sh_status sh_host_alloc(sh_device* device, uint64_t bytes, void** out_memory, uint32_t* out_pinned) {
    return guarded([&] {
        std::shared_ptr<core::Device> found;
        SH_TRY(find_device(device, &found));
        if (!out_memory) return missing("out_memory");
        if (!bytes) return Status(SH_ERROR_INVALID_ARGUMENT, "bytes is 0");
        return found->host_alloc(bytes, out_memory, out_pinned);
    });
}

sh_status sh_host_free(sh_device* device, void* memory) {
    return guarded([&] {
        if (!memory) return Status();
        std::shared_ptr<core::Device> found;
        SH_TRY(find_device(device, &found));
        return found->host_free(memory);
    });
}

}  // extern "C"
