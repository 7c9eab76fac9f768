// Implements the control functions of fault.h.
#include "fault/fault.h"

#include "fault/call_log.h"
#include "fault/order.h"

using stagehand::fault::Call;
using stagehand::fault::call_named;
using stagehand::fault::latest_log;
using stagehand::fault::Order;

sh_status sh_fault_arm(const sh_fault_plan* plan) {
    if (!plan || plan->struct_size < sizeof *plan) return SH_ERROR_INVALID_STRUCT;
    const auto log = latest_log();
    if (!log) return SH_ERROR_INVALID_STATE;
    Call call = Call::device_open;
    if (plan->status > 0 || (plan->call && !call_named(plan->call, &call))) return SH_ERROR_INVALID_ARGUMENT;
    log->arm(plan->call ? &call : nullptr, plan->at, plan->count, plan->status ? plan->status : SH_ERROR_BACKEND);
    return SH_OK;
}

void sh_fault_disarm(void) {
    if (const auto log = latest_log()) log->arm(nullptr, 0, 0, SH_ERROR_BACKEND);
}

sh_status sh_fault_take(uint64_t bytes) {
    const auto log = latest_log();
    if (!log) return SH_ERROR_INVALID_STATE;
    log->take(bytes);
    return SH_OK;
}

sh_status sh_fault_counters(sh_fault_counters_info* out_info) {
    if (!out_info || out_info->struct_size < sizeof *out_info) return SH_ERROR_INVALID_STRUCT;
    const auto log = latest_log();
    if (!log) return SH_ERROR_INVALID_STATE;
    log->counters(out_info);
    return SH_OK;
}

const char* sh_fault_call_name(uint64_t index) {
    const auto log = latest_log();
    return log ? log->name_at(index) : nullptr;
}

uint64_t sh_fault_success_count(const char* name) {
    const auto log = latest_log();
    Call call = Call::device_open;
    return log && name && call_named(name, &call) ? log->successes_of(call) : 0;
}

uint64_t sh_fault_call_count(const char* name) {
    const auto log = latest_log();
    Call call = Call::device_open;
    return log && name && call_named(name, &call) ? log->count_of(call) : 0;
}

uint64_t sh_fault_races(void) { return Order::of_process().races(); }

const char* sh_fault_first_race(void) {
    thread_local std::string text;
    text = Order::of_process().first();
    return text.c_str();
}

void sh_fault_use(sh_stream stream, uint64_t address, uint64_t bytes, uint32_t writes) {
    const stagehand::fault::Use use{address, bytes, writes != 0};
    Order& order = Order::of_process();
    order.operation("use", stream, {&use, 1});
    if (stream == SH_STREAM_HOST) order.stream_ended(stream);
}
