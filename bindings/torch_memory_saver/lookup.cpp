// The system's functions behind those of this library, and dlsym() in front of the system's: programs that look CUDA's
// functions up by themselves get those of this library too.
#include <dlfcn.h>

#include <atomic>
#include <cstring>

#include "memory_saver.h"
#include "real.h"

namespace memory_saver {

namespace {

using LookUp = void* (*)(void*, const char*);

void* finds_nothing(void*, const char*) { return nullptr; }

LookUp system_look_up() {
    // The first is that of glibc from 2.34 on, the others are those of before on x86-64 and on ARM.
    for (const char* const version : {"GLIBC_2.34", "GLIBC_2.2.5", "GLIBC_2.17"})
        if (void* const found = dlvsym(RTLD_NEXT, "dlsym", version)) return reinterpret_cast<LookUp>(found);
    return finds_nothing;
}

// Of libraries that only the program can find, because it has opened them for itself.
struct Noted {
    const char* name;
    std::atomic<void*> function;
};
Noted noted[] = {{"cudaMalloc", {}}, {"cudaFree", {}}, {"cudaGetDevice", {}},
                 {"hipMalloc", {}},  {"hipFree", {}},  {"hipGetDevice", {}}};

Noted* noted_of(const char* name) {
    for (Noted& one : noted)
        if (!std::strcmp(one.name, name)) return &one;
    return nullptr;
}

bool is_own(const void* address) {
    Dl_info own, other;
    return dladdr(reinterpret_cast<const void*>(&finds_nothing), &own) && dladdr(address, &other) &&
           own.dli_fbase == other.dli_fbase;
}

// The library and its backends get the functions of the driver itself.
bool is_of_the_library(const void* address) {
    Dl_info info;
    if (!dladdr(address, &info) || !info.dli_fname) return false;
    const char* const slash = std::strrchr(info.dli_fname, '/');
    const char* const name = slash ? slash + 1 : info.dli_fname;
    return !std::strncmp(name, "stagehand-", 10) || !std::strncmp(name, "libstagehand", 12) || is_own(address);
}

}  // namespace

}  // namespace memory_saver

// dlsym() of the system. Set before the first jump to it.
extern "C" __attribute__((visibility("hidden"))) memory_saver::LookUp memory_saver_look_up;
memory_saver::LookUp memory_saver_look_up = nullptr;

namespace memory_saver {

namespace {

void* look_up(void* handle, const char* name) {
    // Threads that come here at once find the same.
    LookUp found = __atomic_load_n(&memory_saver_look_up, __ATOMIC_ACQUIRE);
    if (!found) {
        found = system_look_up();
        __atomic_store_n(&memory_saver_look_up, found, __ATOMIC_RELEASE);
    }
    return found(handle, name);
}

}  // namespace

void* real_runtime_function(const char* name) {
    if (void* const next = look_up(RTLD_NEXT, name)) return next;
    const Noted* const one = noted_of(name);
    return one ? one->function.load(std::memory_order_acquire) : nullptr;
}

void* real_driver_function(const char* name) {
    // The reference that this takes is kept.
    static std::atomic<void*> driver{nullptr};
    void* handle = driver.load(std::memory_order_acquire);
    if (!handle) {
        handle = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_LOCAL | RTLD_NOLOAD);
        driver.store(handle, std::memory_order_release);
    }
    return handle ? look_up(handle, name) : nullptr;
}

}  // namespace memory_saver

// What dlsym() gives instead of what the system would give. nullptr: what the system gives.
extern "C" __attribute__((visibility("hidden"))) void* memory_saver_pick(void* handle, const char* name,
                                                                         const void* caller) {
    using namespace memory_saver;
    if (!__atomic_load_n(&memory_saver_look_up, __ATOMIC_ACQUIRE)) look_up(RTLD_DEFAULT, "dlsym");
    // The system finds this library's functions by itself if it looks into all libraries. RTLD_NEXT is for those who
    // want what comes behind.
    if (!name || handle == RTLD_DEFAULT || handle == RTLD_NEXT) return nullptr;
    void* const ours = replacement_of(name);
    if (!ours || !takes_driver() || is_of_the_library(caller)) return nullptr;
    void* const real = look_up(handle, name);
    if (!real || is_own(real)) return nullptr;
    if (Noted* const one = noted_of(name)) {
        one->function.store(real, std::memory_order_release);
        for (const char* const other : {"cudaGetDevice", "hipGetDevice"})
            if (void* const found = look_up(handle, other))
                noted_of(other)->function.store(found, std::memory_order_release);
    }
    return ours;
}

// The jump leaves the address of the caller where it is, because RTLD_NEXT depends on it.
#if defined(__x86_64__) && defined(__GLIBC__)
__asm__(R"(
    .text
    .globl dlsym
    .type dlsym, @function
dlsym:
    .cfi_startproc
    endbr64
    push %rdi
    .cfi_adjust_cfa_offset 8
    push %rsi
    .cfi_adjust_cfa_offset 8
    sub $8, %rsp
    .cfi_adjust_cfa_offset 8
    mov 24(%rsp), %rdx
    call memory_saver_pick
    add $8, %rsp
    .cfi_adjust_cfa_offset -8
    pop %rsi
    .cfi_adjust_cfa_offset -8
    pop %rdi
    .cfi_adjust_cfa_offset -8
    test %rax, %rax
    jne 1f
    jmp *memory_saver_look_up(%rip)
1:
    ret
    .cfi_endproc
    .size dlsym, . - dlsym
)");
#endif
