// What every function of the interface does around its work: no exception gets out, the error's text is kept for its
// thread, structs and handles are checked.
#pragma once

#include <atomic>
#include <cstring>
#include <memory>
#include <mutex>
#include <new>
#include <span>
#include <string>

#include <stagehand/stagehand.h>

#include "api/structs.h"
#include "base/handle_table.h"
#include "base/no_throw.h"
#include "base/status.h"
#include "core/device/device.h"
#include "core/occupancy/occupancy.h"
#include "core/runtime/runtime.h"

namespace stagehand::api {

extern std::atomic<bool> forked;  // this process is the child of one that used the library

// Keeps the text for sh_last_error() and hands the code out.
sh_status keep(const Status& status);
sh_status keep(sh_status code, const char* text);
uint64_t last_error(char* buffer, uint64_t capacity);

// Runs `work`, which returns Status.
template <class Work>
sh_status guarded(Work&& work) noexcept {
    if (forked.load(std::memory_order_relaxed)) [[unlikely]]
        return keep(SH_ERROR_FORKED,
                    "the process was forked after the library was used: only the parent may go on using it");
    const Status status = no_throw(work);
    return status.ok() ? status.code() : keep(status);
}

// A caller's list of blocks; NULL only when it is empty.
Status take_blocks(const sh_block* blocks, uint64_t count, std::span<const sh_block>* out);

// What tells the handles of one kind from those of another: odd, below 16, and none twice.
enum HandleTag : uint64_t { kSpillerTag = 0x5, kScopeTag = 0x7, kGraphTag = 0x9, kDeviceTag = 0xb, kRuntimeTag = 0xd };

// Devices are shared: the handle counts how often it was opened.
struct OpenDevice {
    std::shared_ptr<core::Device> device;
    uint32_t opened = 1;
    std::shared_ptr<core::Occupancy> occupancy = nullptr;  // since its first use
};
using Devices = HandleTable<OpenDevice, kDeviceTag>;
using Runtimes = HandleTable<core::Runtime, kRuntimeTag>;
Devices& devices();
Runtimes& runtimes();
extern std::atomic<Runtimes*> runtimes_so_far;  // null until the first runtime

// For the two calls that an engine makes most often: does what needs neither memory, nor a wait, nor a text for an
// error; false when it is none of these cases, and the long way has to be taken.
template <class Work>
bool shortcut(sh_runtime* handle, Work&& work) noexcept {
    auto* const table = runtimes_so_far.load(std::memory_order_acquire);
    if (!table || forked.load(std::memory_order_relaxed)) [[unlikely]]
        return false;
    auto* const slot = table->lock(handle);
    if (!slot) [[unlikely]]
        return false;
    const bool done = work(*slot->object);
    slot->mutex.unlock();
    return done;
}

Status unknown_device(sh_device* handle);
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
    if (!slot) [[unlikely]]
        return unknown_runtime();
    out->runtime = slot->object.get();
    return out->runtime->changing() ? out->runtime->wait_for_change(out->lock) : Status();
}

}  // namespace stagehand::api
