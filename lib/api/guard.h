// What every function of the interface does around its work: no exception gets out, the error's text is kept for its thread, structs
// and handles are checked.
#pragma once

#include <atomic>
#include <cstring>
#include <memory>
#include <mutex>
#include <new>
#include <span>
#include <string>

#include <stagehand/stagehand.h>

#include "base/handle_table.h"
#include "base/status.h"
#include "core/device/device.h"
#include "core/runtime/runtime.h"

namespace stagehand::api {

extern std::atomic<bool> forked;   // this process is the child of one that used the library

// Keeps the text for sh_last_error() and hands the code out.
sh_status keep(const Status& status);
sh_status keep(sh_status code, const char* text);
size_t last_error(char* buffer, size_t capacity);

// Runs `work`, which returns Status.
template <class Work>
sh_status guarded(Work&& work) noexcept {
    if (forked.load(std::memory_order_relaxed)) [[unlikely]]
        return keep(SH_ERROR_FORKED, "the process was forked after the library was used: only the parent may go on using it");
    try {
        const Status status = work();
        if (status.ok()) [[likely]] return status.code();
        return keep(status);
    } catch (const std::bad_alloc&) {
        return keep(SH_ERROR_OUT_OF_HOST_MEMORY, "the process has no memory left");
    } catch (const std::exception& error) {
        return keep(SH_ERROR_INTERNAL, error.what());
    } catch (...) {
        return keep(SH_ERROR_INTERNAL, "an unknown C++ exception");
    }
}

// What is known of a struct's size: that of its first version, this library's, and what the size of each version is a multiple of.
struct KnownSize {
    size_t least, bytes, alignment;
};

// Checks the size that a caller's struct claims. Bytes beyond what is known must be zero.
Status check_size(const void* data, uint32_t claimed, const KnownSize& known, const char* name);

template <class Struct>
Status check_struct(const Struct* data, const char* name) {
    if (!data) return Status(SH_ERROR_INVALID_ARGUMENT, std::string(name) + " is NULL");
    if (data->struct_size == sizeof(Struct)) [[likely]] return Status();
    return check_size(data, data->struct_size, {sizeof(Struct), sizeof(Struct), alignof(Struct)}, name);
}

// A caller's options, or the defaults when NULL.
template <class Struct>
Status take_options(const Struct* given, const char* name, Struct* out) {
    *out = {};
    out->struct_size = sizeof(Struct);
    if (!given) return Status();
    SH_TRY(check_struct(given, name));
    std::memcpy(out, given, sizeof(Struct));
    return Status();
}

// A count beyond this is a mistake, whatever the array: it is told before anything is looked at, or counted with.
constexpr uint64_t kMostElements = uint64_t(1) << 32;
Status check_count(uint64_t count, const char* name);

// A caller's list of blocks; NULL only when it is empty.
Status take_blocks(const sh_block* blocks, uint64_t count, std::span<const sh_block>* out);

// A caller's array of structs: its name and that of its number of elements.
struct ArrayName {
    const char* elements;
    const char* count = "count";
};

// Pointers to the elements, whose distance is their struct_size.
template <class Struct, class Pointers>
Status take_array(Struct* first, uint64_t count, const ArrayName& names, Pointers* out) {
    out->clear();
    if (!count) return Status();
    const char* const name = names.elements;
    SH_TRY(check_count(count, names.count));
    SH_TRY(check_struct(first, name));
    const uint64_t distance = first->struct_size;
    out->reserve(count);
    for (uint64_t i = 0; i < count; i++) {
        auto* element = reinterpret_cast<Struct*>(reinterpret_cast<uintptr_t>(first) + i * distance);
        if (element->struct_size != distance)
            return Status(SH_ERROR_INVALID_STRUCT, std::string(name) + "[" + std::to_string(i) + "].struct_size differs from the first one's");
        SH_TRY(check_struct(static_cast<const Struct*>(element), name));
        out->push_back(element);
    }
    return Status();
}

// What tells the handles of one kind from those of another: odd, below 16, and none twice.
enum HandleTag : uint64_t { kScopeTag = 0x7, kGraphTag = 0x9, kDeviceTag = 0xb, kRuntimeTag = 0xd };

// Devices are shared: the handle counts how often it was opened.
struct OpenDevice {
    std::shared_ptr<core::Device> device;
    uint32_t opened = 1;
};
using Devices = HandleTable<OpenDevice, kDeviceTag>;
using Runtimes = HandleTable<core::Runtime, kRuntimeTag>;
Devices& devices();
Runtimes& runtimes();
extern std::atomic<Runtimes*> runtimes_so_far;   // null until the first runtime

// For the two calls that an engine makes most often: does what needs neither memory, nor a wait, nor a text for an error; false when
// it is none of these cases, and the long way has to be taken.
template <class Work>
bool shortcut(sh_runtime* handle, Work&& work) noexcept {
    auto* const table = runtimes_so_far.load(std::memory_order_acquire);
    if (!table || forked.load(std::memory_order_relaxed)) [[unlikely]] return false;
    auto* const slot = table->lock(handle);
    if (!slot) [[unlikely]] return false;
    const bool done = work(*slot->object);
    slot->mutex.unlock();
    return done;
}

Status find_device(sh_device* handle, std::shared_ptr<core::Device>* out);

// The runtime of a handle, locked.
struct LockedRuntime {
    core::Runtime* runtime = nullptr;
    core::Lock lock;

    LockedRuntime() = default;
    ~LockedRuntime() { unlock(); }
    LockedRuntime(const LockedRuntime&) = delete;
    LockedRuntime& operator=(const LockedRuntime&) = delete;
    void unlock() {
        if (runtime && lock.owns_lock()) runtime->look_around();
        runtime = nullptr;
        lock = core::Lock();
    }
};
Status unknown_runtime();
inline Status find_runtime(sh_runtime* handle, LockedRuntime* out) {
    auto* slot = runtimes().lock(handle, &out->lock);
    if (!slot) [[unlikely]] return unknown_runtime();
    out->runtime = slot->object.get();
    return out->runtime->changing() ? out->runtime->wait_for_change(out->lock) : Status();
}

}  // namespace stagehand::api
