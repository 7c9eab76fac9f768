#include "fault/call_log.h"

#include <chrono>
#include <iterator>
#include <thread>

namespace stagehand::fault {
namespace {

#define SH_NAME(name) #name,
constexpr const char* kNames[] = {"device_open",
                                  SH_BACKEND_DEVICE_FUNCTIONS(SH_NAME) SH_BACKEND_OPTIONAL_FUNCTIONS(SH_NAME)};
#undef SH_NAME
static_assert(std::size(kNames) == kCalls);

constexpr size_t kMostNames = size_t(1) << 24;

// Never destroyed, because devices may be used until the process ends.
struct Latest {
    std::mutex mutex;
    std::shared_ptr<CallLog> log;
};
Latest& latest() {
    static Latest* const instance = new Latest;
    return *instance;
}

}  // namespace

const char* name_of(Call call) { return kNames[static_cast<size_t>(call)]; }

bool call_named(const std::string& name, Call* out) {
    for (size_t i = 0; i < kCalls; ++i) {
        if (name != kNames[i]) continue;
        *out = static_cast<Call>(i);
        return true;
    }
    return false;
}

std::shared_ptr<CallLog> latest_log() {
    std::lock_guard lock(latest().mutex);
    return latest().log;
}

void set_latest_log(std::shared_ptr<CallLog> log) {
    std::lock_guard lock(latest().mutex);
    latest().log.swap(log);
}

sh_status CallLog::enter(Call call) {
    uint64_t delay_ns = 0;
    sh_status status = SH_OK;
    {
        std::lock_guard lock(mutex_);
        ++total_;
        ++counts_[static_cast<size_t>(call)];
        if (calls_.size() < kMostNames) calls_.push_back(call);
        if (most_delay_ns_) delay_ns = random_delay_ns();
        if (failures_planned_ && (any_call_ || call == fail_call_)) {
            if (before_failure_) {
                --before_failure_;
            } else {
                if (failures_planned_ != UINT64_MAX) --failures_planned_;
                ++failures_;
                status = status_;
            }
        }
    }
    if (delay_ns) std::this_thread::sleep_for(std::chrono::nanoseconds(delay_ns));
    return status;
}

void CallLog::arm(const Call* call, uint64_t at, uint64_t count, sh_status status) {
    std::lock_guard lock(mutex_);
    any_call_ = !call;
    if (call) fail_call_ = *call;
    before_failure_ = at ? at - 1 : 0;
    failures_planned_ = !at ? 0 : count ? count : UINT64_MAX;
    status_ = status;
}

void CallLog::set_delays(uint64_t most_ns, uint64_t seed) {
    std::lock_guard lock(mutex_);
    most_delay_ns_ = most_ns;
    random_ = seed;
}

void CallLog::set_open(bool open) {
    std::lock_guard lock(mutex_);
    open_ = open;
}

void CallLog::counters(sh_fault_counters_info* out) const {
    std::lock_guard lock(mutex_);
    out->open = open_;
    out->calls = total_;
    out->failures = failures_;
}

const char* CallLog::name_at(uint64_t index) const {
    std::lock_guard lock(mutex_);
    return index == 0 || index > calls_.size() ? nullptr : name_of(calls_[index - 1]);
}

uint64_t CallLog::count_of(Call call) const {
    std::lock_guard lock(mutex_);
    return counts_[static_cast<size_t>(call)];
}

void CallLog::succeed(Call call) {
    std::lock_guard lock(mutex_);
    ++successes_[static_cast<size_t>(call)];
}

uint64_t CallLog::successes_of(Call call) const {
    std::lock_guard lock(mutex_);
    return successes_[static_cast<size_t>(call)];
}

uint64_t CallLog::random_delay_ns() {
    random_ += 0x9e3779b97f4a7c15u;
    uint64_t mixed = random_;
    mixed = (mixed ^ (mixed >> 30)) * 0xbf58476d1ce4e5b9u;
    mixed = (mixed ^ (mixed >> 27)) * 0x94d049bb133111ebu;
    return (mixed ^ (mixed >> 31)) % (most_delay_ns_ + 1);
}

}  // namespace stagehand::fault
