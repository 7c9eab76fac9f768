/*
 * Controls of the fault backend, a plugin for tests: it wraps another backend, counts the calls to it, and
 * lets chosen ones fail. A test that has opened a device of it finds these functions in the plugin with
 * dlopen(path, RTLD_NOW | RTLD_NOLOAD) and dlsym().
 *
 * Options of a device: wrap=NAME or NAME:INDEX (default host); fail_at=N (the N-th call fails; the opening of
 * the device is the first); fail_call=NAME (only calls of this member count); fail_status=CODE (default
 * -401); fail_count=N (so many calls fail in a row; 0: all from then on; default 1); delay_us=T (each call is
 * delayed at random by up to so much) with delay_seed=N. All other options go to the wrapped backend.
 *
 * A call that fails does nothing else: the wrapped backend is not called. clock(), last_error() and
 * device_close() are not counted and never fail. The functions below speak of the device that was opened
 * last, also when its opening failed and after it was closed; they may be called from any thread.
 */
#ifndef STAGEHAND_FAULT_H
#define STAGEHAND_FAULT_H

#include <stagehand/base.h>

#ifdef __cplusplus
extern "C" {
#endif

/** What is to fail. */
typedef struct sh_fault_plan {
    uint32_t struct_size;
    sh_status status; /**< What the call returns, negative; 0: SH_ERROR_BACKEND. */
    const char *call; /**< Name of a member of sh_backend, e.g. "copy_to_device"; NULL: any. */
    uint64_t at;    /**< The at-th such call from now, counted from 1; 0: none, as after sh_fault_disarm(). */
    uint64_t count; /**< So many such calls in a row; 0: all from then on. */
} sh_fault_plan;

/** Replaces the device's plan. SH_ERROR_INVALID_STATE without a device; SH_ERROR_INVALID_ARGUMENT (an unknown
 * name, a status >= 0). */
SH_API sh_status sh_fault_arm(const sh_fault_plan *plan);

/** Nothing fails any more. */
SH_API void sh_fault_disarm(void);

/** Others take so much of the device's memory from now on (replaces what was said before): memory_info() tells so
 * much less free. Nothing is really taken. SH_ERROR_INVALID_STATE without a device. */
SH_API sh_status sh_fault_take(uint64_t bytes);

/** Figures of a device. */
typedef struct sh_fault_counters_info {
    uint32_t struct_size;
    uint32_t open;     /**< 1 while the device is open. */
    uint64_t calls;    /**< Calls since, and with, the opening. */
    uint64_t failures; /**< Of them, those that were made to fail. */
} sh_fault_counters_info;

/** SH_ERROR_INVALID_STATE when no device was ever opened. */
SH_API sh_status sh_fault_counters(sh_fault_counters_info *out_info);

/** Name of the index-th call of the device, counted from 1; static. NULL beyond the last, and beyond the
 * first 2^24. */
SH_API const char *sh_fault_call_name(uint64_t index);

/** How often the member `call` of the table was called; 0 for an unknown name. */
SH_API uint64_t sh_fault_call_count(const char *call);

#ifdef __cplusplus
}
#endif

#endif
