#include "api/guard.h"

#include <pthread.h>

#include <algorithm>
#include <string_view>

namespace stagehand::api {

std::atomic<bool> forked{false};
std::atomic<Runtimes*> runtimes_so_far{nullptr};

namespace {

thread_local std::string last_text;
thread_local const char* short_text = nullptr;  // for an error whose text found no memory

// Registered when the first handle is made: before that a fork does no harm.
template <class Table>
Table& table() {
    static Table* const instance = [] {
        Table* const made = new Table;  // never destroyed: handles may be used while the process exits
        pthread_atfork(nullptr, nullptr, [] { forked.store(true, std::memory_order_relaxed); });
        return made;
    }();
    return *instance;
}

}  // namespace

sh_status keep(const Status& status) { return keep(status.code(), status.text()); }

sh_status keep(sh_status code, const char* text) {
    try {
        last_text = text;
        short_text = nullptr;
    } catch (...) {
        short_text = sh_status_string(code);
    }
    return code;
}

uint64_t last_error(char* buffer, uint64_t capacity) {
    const std::string_view text = short_text ? std::string_view(short_text) : std::string_view(last_text);
    if (buffer && capacity) {
        const size_t bytes = std::min<uint64_t>(capacity - 1, text.size());
        std::memcpy(buffer, text.data(), bytes);
        buffer[bytes] = 0;
    }
    return text.size();
}

Status take_blocks(const sh_block* blocks, uint64_t count, std::span<const sh_block>* out) {
    if (count && !blocks) return Status(SH_ERROR_INVALID_ARGUMENT, "blocks is NULL");
    SH_TRY(check_count(count, "count"));
    *out = {blocks, count};
    return Status();
}

Devices& devices() { return table<Devices>(); }
Runtimes& runtimes() {
    Runtimes& all = table<Runtimes>();
    runtimes_so_far.store(&all, std::memory_order_release);
    return all;
}

Status unknown_device(sh_device* handle) {
    return Status(SH_ERROR_INVALID_HANDLE, handle ? "device is not an open device" : "device is NULL");
}

Status find_device(sh_device* handle, std::shared_ptr<core::Device>* out) {
    core::Lock lock;
    auto* slot = devices().lock(handle, &lock);
    if (!slot) return unknown_device(handle);
    *out = slot->object->device;
    return Status();
}

Status unknown_runtime() { return Status(SH_ERROR_INVALID_HANDLE, "runtime is NULL, destroyed, or not a runtime"); }

}  // namespace stagehand::api
