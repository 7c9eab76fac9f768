// What the environment and each thread say about allocations.
#include <strings.h>

#include <array>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "memory_saver.h"

namespace memory_saver {

namespace {

constexpr std::array<const char*, 3> kTrue = {"1", "true", "yes"}, kFalse = {"0", "false", "no"};

bool is_one_of(const char* value, const std::array<const char*, 3>& words) {
    for (const char* const word : words)
        if (!strcasecmp(value, word)) return true;
    return false;
}

bool is_wrong(const char* variable) {
    const char* const value = std::getenv(variable);
    return value && !is_one_of(value, kTrue) && !is_one_of(value, kFalse);
}

Config first_config() {
    Config made = {};
    made.interesting = is_true("TMS_INIT_ENABLE");
    made.cpu_backup = is_true("TMS_INIT_ENABLE_CPU_BACKUP");
    made.disk_backup = is_true("TMS_INIT_ENABLE_DISK_BACKUP");
    std::snprintf(made.tag, sizeof made.tag, "default");
    if (const char* const backend = std::getenv("TMS_INIT_CPU_BACKUP_BACKEND"))
        std::snprintf(made.cpu_backup_backend, sizeof made.cpu_backup_backend, "%s", backend);
    return made;
}

const char* find_wrong_variable() {
    for (const char* const variable : {"TMS_INIT_ENABLE", "TMS_INIT_ENABLE_CPU_BACKUP", "TMS_INIT_ENABLE_DISK_BACKUP",
                                       "TMS_RETAIN_CPU_BACKUP", "TMS_STAGEHAND_DRIVER"})
        if (is_wrong(variable)) return variable;
    const char* const backend = std::getenv("TMS_INIT_CPU_BACKUP_BACKEND");
    const bool known = !backend || !std::strcmp(backend, "pinned") || !std::strcmp(backend, "mmap");
    return known ? nullptr : "TMS_INIT_CPU_BACKUP_BACKEND";
}

}  // namespace

bool is_true(const char* variable) {
    const char* const value = std::getenv(variable);
    return value && is_one_of(value, kTrue);
}

Config& config() {
    thread_local Config current = first_config();
    return current;
}

bool takes_driver() {
    static const bool taken = is_true("TMS_STAGEHAND_DRIVER");
    return taken;
}

const char* wrong_variable() {
    static const char* const found = find_wrong_variable();
    return found;
}

}  // namespace memory_saver
