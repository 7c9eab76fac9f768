// The functions of torch_memory_saver's libraries that Python and other programs call, by their names there.
#include <sys/types.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "memory_saver.h"
#include "real.h"

namespace {

std::atomic<bool> retain_cpu_backup{false};
std::atomic<bool> retain_is_set{false};

// Cuts what is too long.
template <std::size_t N>
void copy(char (&to)[N], const char* from) {
    std::snprintf(to, N, "%s", from ? from : "");
}

}  // namespace

using memory_saver::config;

MEMORY_SAVER_HOOK void tms_set_interesting_region(bool on) { config().interesting = on; }
MEMORY_SAVER_HOOK bool tms_get_interesting_region() { return config().interesting; }
// A tag without 1 to 63 bytes is none: allocations fail, and no two tags become one.
MEMORY_SAVER_HOOK void tms_set_current_tag(const char* tag) {
    copy(config().tag, tag && std::strlen(tag) < sizeof config().tag ? tag : "");
}
MEMORY_SAVER_HOOK const char* tms_get_current_tag() { return config().tag; }
MEMORY_SAVER_HOOK void tms_set_enable_cpu_backup(bool on) { config().cpu_backup = on; }
MEMORY_SAVER_HOOK bool tms_get_enable_cpu_backup() { return config().cpu_backup; }
MEMORY_SAVER_HOOK void tms_set_cpu_backup_backend(const char* name) { copy(config().cpu_backup_backend, name); }
MEMORY_SAVER_HOOK const char* tms_get_cpu_backup_backend() { return config().cpu_backup_backend; }
MEMORY_SAVER_HOOK void tms_set_enable_disk_backup(bool on) { config().disk_backup = on; }
MEMORY_SAVER_HOOK bool tms_get_enable_disk_backup() { return config().disk_backup; }

MEMORY_SAVER_HOOK void set_memory_margin_bytes(uint64_t bytes) { memory_saver::set_margin(bytes); }
MEMORY_SAVER_HOOK void tms_set_retain_cpu_backup(bool on) {
    retain_cpu_backup = on;
    retain_is_set = true;
}
MEMORY_SAVER_HOOK bool tms_get_retain_cpu_backup() {
    return retain_is_set ? retain_cpu_backup.load() : memory_saver::is_true("TMS_RETAIN_CPU_BACKUP");
}

MEMORY_SAVER_HOOK void tms_set_disk_backup_dir(const char* path) {
    if (path) memory_saver::set_disk_folder(path);
}

// NULL while the memory is on the device, if there are no contents, and for other memory. What the pointer shows stays
// until the tag is resumed or the memory is freed.
MEMORY_SAVER_HOOK uint8_t* tms_get_cpu_backup_pointer(const uint8_t* memory, uint64_t bytes) {
    return memory_saver::backup_of(memory, bytes);
}

// 0, or a negative status of the library. torch_memory_saver ends the process on a failure.
MEMORY_SAVER_HOOK int tms_pause(const char* tag) { return memory_saver::pause(tag, nullptr, 0); }
MEMORY_SAVER_HOOK int tms_resume(const char* tag) { return memory_saver::resume(tag); }

// --- Not of torch_memory_saver ---

// A pause that does not copy these ranges.
MEMORY_SAVER_HOOK int tms_stagehand_pause(const char* tag, const sh_memory_range* unused, uint64_t unused_count) {
    return memory_saver::pause(tag, unused, unused_count);
}
// Copies contents that are away. 1: the memory is on the device, or is not from here.
MEMORY_SAVER_HOOK int tms_stagehand_read(const void* memory, uint64_t bytes, void* contents) {
    return memory_saver::read(memory, bytes, contents);
}
// The library's name for PyTorch's devices.
MEMORY_SAVER_HOOK void tms_stagehand_set_backend(const char* name) { memory_saver::set_backend(name); }
// Writes why the last call of this thread has failed, and returns the length of the whole text.
MEMORY_SAVER_HOOK uint64_t tms_stagehand_last_error(char* text, uint64_t capacity) {
    return memory_saver::error_text(text, capacity);
}

// --- For PyTorch's pools ---

// Outside of regions the memory is CUDA's.
MEMORY_SAVER_HOOK void* tms_torch_malloc(ssize_t bytes, int device, void* /* stream */) {
    if (bytes <= 0) return nullptr;
    void* memory = nullptr;
    if (config().interesting || memory_saver::wrong_variable())
        return memory_saver::allocate(std::size_t(bytes), device, &memory) < 0 ? nullptr : memory;
    const auto plain = memory_saver::real_runtime<memory_saver::Malloc>("cudaMalloc", "hipMalloc");
    return plain && plain(&memory, std::size_t(bytes)) == 0 ? memory : nullptr;
}

MEMORY_SAVER_HOOK void tms_torch_free(void* memory, ssize_t, int, void* /* stream */) {
    sh_status status = SH_OK;
    if (!memory || memory_saver::give_back(memory, &status)) return;
    if (const auto plain = memory_saver::real_runtime<memory_saver::Free>("cudaFree", "hipFree")) plain(memory);
}
