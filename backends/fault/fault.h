/*
 * Controls of the fault backend, a plugin for tests. The plugin wraps another backend, counts the calls to it, and
 * makes chosen calls fail. A test opens a device of this backend, then finds these functions in the plugin with
 * dlopen(path, RTLD_NOW | RTLD_NOLOAD) and dlsym().
 *
 * Options of a device:
 *     wrap=NAME or NAME:INDEX   the wrapped backend (default host)
 *     fail_at=N                 the N-th call fails; the opening of the device is the first call
 *     fail_call=NAME            only calls of this member count
 *     fail_status=CODE          the status of the failing calls (default -401)
 *     fail_count=N              this many calls fail in a row; 0 means all calls from then on (default 1)
 *     late=1                    the planned call does not fail, but the device has gone from then on: copies do nothing
 *                               and succeed, and whatever waits or asks whether something has ended fails
 *     delay_us=T                each call is delayed at random by up to this time
 *     delay_seed=N              seed of the random delays
 *     ordered=1                 accesses that nothing orders are counted: see sh_fault_races()
 *     ordered=2                 of these, only memory that is given back too early is counted
 * All other options go to the wrapped backend.
 *
 * A call that fails does not call the wrapped backend, except that a stream_synchronize() that fails with
 * SH_ERROR_DEVICE_LOST waits for the stream: a lost device copies nothing any more. clock(), last_error() and
 * device_close() are not counted and never fail. The functions below are about the device that was opened last. They
 * work after its opening failed and after it was closed too. Any thread may call them.
 */
#ifndef STAGEHAND_FAULT_H
#define STAGEHAND_FAULT_H

#include <stagehand/base.h>

#ifdef __cplusplus
extern "C" {
#endif

/** The calls that have to fail. */
typedef struct sh_fault_plan {
    uint32_t struct_size;
    sh_status status; /**< Negative status that the call returns; 0: SH_ERROR_BACKEND. */
    const char* call; /**< Name of a member of sh_backend, e.g. "copy_to_device"; NULL: every member. */
    uint64_t at;      /**< The first matching call that fails, counted from 1; 0: none. */
    uint64_t count;   /**< Number of matching calls in a row that fail; 0: all from then on. */
} sh_fault_plan;

/**
 * Replaces the device's plan. Returns SH_ERROR_INVALID_STRUCT if the struct is too small, SH_ERROR_INVALID_STATE if no
 * device was ever opened, and SH_ERROR_INVALID_ARGUMENT if the name is unknown or the status is above 0.
 */
SH_API sh_status sh_fault_arm(const sh_fault_plan* plan);

/** Ends the plan: no call fails any more. */
SH_API void sh_fault_disarm(void);

/**
 * Pretends that other programs have taken `bytes` of the device's memory: memory_info() reports that much less free
 * memory. No memory is really taken. Replaces the value of earlier calls. Returns SH_ERROR_INVALID_STATE if no device
 * was ever opened.
 */
SH_API sh_status sh_fault_take(uint64_t bytes);

/** Figures of a device. */
typedef struct sh_fault_counters_info {
    uint32_t struct_size;
    uint32_t open;     /**< 1 while the device is open. */
    uint64_t calls;    /**< Calls since the opening, including it. */
    uint64_t failures; /**< Calls that this backend made fail. */
} sh_fault_counters_info;

/** Reads the figures. Returns SH_ERROR_INVALID_STATE if no device was ever opened. */
SH_API sh_status sh_fault_counters(sh_fault_counters_info* out_info);

/**
 * Returns the name of the index-th call of the device, counted from 1. The text is static. Returns NULL beyond the last
 * call, and beyond the first 2^24 calls.
 */
SH_API const char* sh_fault_call_name(uint64_t index);

/** Returns the number of calls of the member `call`, or 0 for an unknown name. */
SH_API uint64_t sh_fault_call_count(const char* call);

/** Returns the number of calls of the member `call` that the wrapped backend has answered without an error. */
SH_API uint64_t sh_fault_success_count(const char* call);

/**
 * Returns how often an operation used bytes that another one wrote, or wrote bytes that another one used, without being
 * ordered after it by a stream, an event or a wait of the host, and how often memory was given back that queued work
 * may have used. Counts for all devices of the process that were opened with ordered=1.
 */
SH_API uint64_t sh_fault_races(void);

/** Returns what sh_fault_races() counted first, or "". Valid until the thread's next call. */
SH_API const char* sh_fault_first_race(void);

/**
 * Tells that the work of the engine that was queued on the stream last, or that the host has just done
 * (SH_STREAM_HOST), uses these bytes, at an address of the device.
 */
SH_API void sh_fault_use(sh_stream stream, uint64_t address, uint64_t bytes, uint32_t writes);

#ifdef __cplusplus
}
#endif

#endif
