// CallLog: records the calls on a device of the fault backend, and decides which call fails next.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "backend/functions.h"
#include "fault/fault.h"

namespace stagehand::fault {

// The members of the table that are counted.
#define SH_CALL(name) name,
enum class Call : uint8_t { device_open, SH_BACKEND_DEVICE_FUNCTIONS(SH_CALL) SH_BACKEND_OPTIONAL_FUNCTIONS(SH_CALL) };
#undef SH_CALL
constexpr size_t kCalls = static_cast<size_t>(Call::unpack_tiles) + 1;

const char* name_of(Call call);
// Returns false if no counted member has the name.
bool call_named(const std::string& name, Call* out);

// Thread-safe.
class CallLog {
public:
    // Counts a call, after its random delay. A negative result means that the call has to fail with this status.
    sh_status enter(Call call);

    // A `call` of NULL means every call. An `at` of 0 means that no call fails, and a `count` of 0 that all calls fail
    // from then on.
    void arm(const Call* call, uint64_t at, uint64_t count, sh_status status);
    void set_delays(uint64_t most_ns, uint64_t seed);
    void set_open(bool open);
    // Bytes of device memory that seem to be taken by other programs.
    void take(uint64_t bytes) { taken_ = bytes; }
    uint64_t taken() const { return taken_; }

    void counters(sh_fault_counters_info* out) const;
    const char* name_at(uint64_t index) const;
    uint64_t count_of(Call call) const;
    // The wrapped backend has done what it was asked to do.
    void succeed(Call call);
    uint64_t successes_of(Call call) const;

private:
    uint64_t random_delay_ns();

    std::atomic<uint64_t> taken_{0};
    mutable std::mutex mutex_;
    std::vector<Call> calls_;  // the first calls, at most 2^24
    uint64_t total_ = 0;
    uint64_t failures_ = 0;
    std::array<uint64_t, kCalls> counts_ = {}, successes_ = {};
    bool open_ = false;

    bool any_call_ = true;
    Call fail_call_ = Call::device_open;
    uint64_t before_failure_ = 0;    // matching calls that still succeed
    uint64_t failures_planned_ = 0;  // matching calls that fail after that
    sh_status status_ = SH_ERROR_BACKEND;

    uint64_t most_delay_ns_ = 0;
    uint64_t random_ = 0;
};

// The log of the device that was opened last, or null before the first device. The log outlives the device.
std::shared_ptr<CallLog> latest_log();
void set_latest_log(std::shared_ptr<CallLog> log);

}  // namespace stagehand::fault
