#include "api/guard.h"

#include <pthread.h>

#include <algorithm>
#include <string_view>

namespace stagehand::api {

std::atomic<bool> forked{false};
std::atomic<Runtimes*> runtimes_so_far{nullptr};

namespace {

thread_local std::string last_text;
thread_local const char* short_text = nullptr;   // for an error whose text found no memory

// Registered when the first handle is made: before that a fork does no harm.
template <class Table>
Table& table() {
    static Table* const instance = [] {
        Table* const made = new Table;   // never destroyed: handles may be used while the process exits
        pthread_atfork(nullptr, nullptr, [] { forked.store(true, std::memory_order_relaxed); });
        return made;
    }();
    return *instance;
}

}  // namespace

sh_status keep(const Status& status) {
    return keep(status.code(), status.text());
}

sh_status keep(sh_status code, const char* text) {
    try {
        last_text = text;
        short_text = nullptr;
    } catch (...) {
        short_text = sh_status_string(code);
    }
    return code;
}

size_t last_error(char* buffer, size_t capacity) {
    const std::string_view text = short_text ? std::string_view(short_text) : std::string_view(last_text);
    if (buffer && capacity) {
        const size_t bytes = std::min(capacity - 1, text.size());
        std::memcpy(buffer, text.data(), bytes);
        buffer[bytes] = 0;
    }
    return text.size();
}

Status check_size(const void* data, uint32_t claimed, const KnownSize& known, const char* name) {
    const std::string size = std::string(name) + ".struct_size is " + std::to_string(claimed);
    if (claimed < known.least)
        return Status(SH_ERROR_INVALID_STRUCT, size + ", less than the " + std::to_string(known.least) + " bytes of its first version");
    if (claimed > 65536 || claimed % known.alignment) return Status(SH_ERROR_INVALID_STRUCT, size + ", which no version has");
    const char* const bytes = static_cast<const char*>(data);
    for (size_t i = known.bytes; i < claimed; i++)
        if (bytes[i]) return Status(SH_ERROR_INVALID_STRUCT, size + ", and byte " + std::to_string(i) + ", unknown to this library, is not zero");
    return Status();
}

Status check_count(uint64_t count, const char* name) {
    if (count <= kMostElements) return Status();
    return Status(SH_ERROR_INVALID_ARGUMENT, std::string(name) + " is " + std::to_string(count) + ", and an array has at most " +
                                                 std::to_string(kMostElements) + " elements");
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

Status find_device(sh_device* handle, std::shared_ptr<core::Device>* out) {
    core::Lock lock;
    auto* slot = devices().lock(handle, &lock);
    if (!slot) return Status(SH_ERROR_INVALID_HANDLE, handle ? "device is not an open device" : "device is NULL");
    *out = slot->object->device;
    return Status();
}

Status unknown_runtime() { return Status(SH_ERROR_INVALID_HANDLE, "runtime is NULL, destroyed, or not a runtime"); }

}  // namespace stagehand::api
