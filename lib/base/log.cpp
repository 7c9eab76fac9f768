#include "base/log.h"

#include <atomic>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <new>
#include <shared_mutex>

#include "base/no_signals.h"
#include "base/plain_format.h"

namespace stagehand {
namespace {

struct Receiver {
    std::shared_mutex mutex;  // held shared during a call, so that set_log() can wait for it
    sh_log_fn log = nullptr;
    void* user_data = nullptr;
};

void to_standard_error(int32_t level, const char* message, void*) {
    static const char* const names[] = {"", "error", "warning", "info", "debug"};
    const NoSignals quiet;
    std::fprintf(stderr, "stagehand: %s: %s\n", names[level], message);
}

int32_t level_from_environment() {
    const char* text = std::getenv("STAGEHAND_LOG");
    if (!text) return 0;
    if (!std::strcmp(text, "error")) return SH_LOG_ERROR;
    if (!std::strcmp(text, "warning")) return SH_LOG_WARNING;
    if (!std::strcmp(text, "info")) return SH_LOG_INFO;
    if (!std::strcmp(text, "debug")) return SH_LOG_DEBUG;
    return 0;
}

// The receiver is never destroyed, because worker threads may log while the process exits. It needs no memory, because
// the message may be that no memory is left.
Receiver& receiver() {
    alignas(Receiver) static unsigned char place[sizeof(Receiver)];
    static Receiver* const instance = new (place) Receiver;
    return *instance;
}

std::atomic<int32_t>& highest_level() {
    static std::atomic<int32_t> level = [] {
        const int32_t wanted = level_from_environment();
        if (wanted) receiver().log = to_standard_error;
        return wanted;
    }();
    return level;
}

}  // namespace

bool log_enabled(int32_t level) { return level <= highest_level().load(std::memory_order_relaxed); }

void log_line(int32_t level, const char* format, ...) noexcept {
    if (!log_enabled(level)) return;
    char line[1024];
    va_list arguments;
    va_start(arguments, format);
    vplain_format(line, sizeof line, format, arguments);
    va_end(arguments);
    try {
        Receiver& to = receiver();
        std::shared_lock lock(to.mutex);
        if (to.log) to.log(level, line, to.user_data);
    } catch (...) {  // a receiver that throws loses its line
    }
}

sh_status set_log(int32_t level, sh_log_fn log, void* user_data) {
    if (level < 0 || level > SH_LOG_DEBUG) return SH_ERROR_INVALID_ARGUMENT;
    highest_level();  // reads the environment first, so that it cannot override this level later
    Receiver& to = receiver();
    std::unique_lock lock(to.mutex);
    to.log = log;
    to.user_data = user_data;
    highest_level().store(log ? level : 0, std::memory_order_relaxed);
    return SH_OK;
}

}  // namespace stagehand
