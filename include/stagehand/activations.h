/*
 * Planning of saved tensors: which of them a training step keeps on the device, spills to host memory, and computes
 * again. The calls need no device: they compute from the sizes and times of one recorded step. spill.h carries a plan
 * out.
 */
#ifndef STAGEHAND_ACTIVATIONS_H
#define STAGEHAND_ACTIVATIONS_H

#include "base.h"

#ifdef __cplusplus
extern "C" {
#endif

enum {
    SH_ACTIVATION_CHEAP = 1 /**< The storage may be computed again, in recompute_ns, from `inputs`. */
};

/**
 * A storage that the step saves for its backward. Times are nanoseconds since the step began, in a step that neither
 * spills nor computes anything again.
 */
typedef struct sh_activation {
    uint32_t struct_size;
    uint32_t flags; /**< SH_ACTIVATION_* */
    uint64_t bytes;
    uint64_t produced_ns;  /**< The storage takes memory from this time on, and its copy to the host can begin. */
    uint64_t released_ns;  /**< End of its last use in the forward. 0: produced_ns. */
    uint64_t first_use_ns; /**< Beginning of its first use in the backward. */
    uint64_t last_use_ns;  /**< End of its last use in the backward, which frees the memory. */
    uint64_t recompute_ns; /**< With SH_ACTIVATION_CHEAP. */
    /** `input_count` indices of the saved storages that this one is computed from. Those storages are on the device at
        that time: kept, restored, or computed again themselves. NULL: the storage is computed from data that is on the
        device anyway. */
    const uint32_t* inputs;
    uint64_t input_count;
} sh_activation;

#define SH_ACTIVATION_INIT \
    { sizeof(sh_activation), 0, 0, 0, 0, 0, 0, 0, 0, 0 }
static inline void sh_activation_init(sh_activation* activation) {
    const sh_activation initial = SH_ACTIVATION_INIT;
    *activation = initial;
}

/** Memory in use from one moment until the moment of the next point. */
typedef struct sh_memory_point {
    uint32_t struct_size;
    uint32_t reserved;
    uint64_t ns; /**< Since the step began. */
    uint64_t bytes;
} sh_memory_point;

#define SH_MEMORY_POINT_INIT \
    { sizeof(sh_memory_point), 0, 0, 0 }
static inline void sh_memory_point_init(sh_memory_point* point) {
    const sh_memory_point initial = SH_MEMORY_POINT_INIT;
    *point = initial;
}

/** A recorded step, and its target: either target_peak_bytes or target_step_ns. */
typedef struct sh_training_step {
    uint32_t struct_size;
    uint32_t reserved;
    const sh_activation* activations; /**< In the order of saving: produced_ns never falls. */
    uint64_t activation_count;
    /** Memory in use besides the saved storages, by time: weights, gradients, and the temporary memory of operations.
        NULL: there is no such memory. */
    const sh_memory_point* others;
    uint64_t other_count;
    uint64_t forward_end_ns;
    uint64_t end_ns;                           /**< Length of the recorded step. No storage is used after it. */
    uint64_t to_host_bytes_per_second;         /**< Speed of the link. 0: nothing is spilled. */
    uint64_t to_device_bytes_per_second;       /**< Speed of the link. 0: nothing is spilled. */
    uint64_t other_to_host_bytes_per_second;   /**< The part of it that other copies take: write-back, gradients. */
    uint64_t other_to_device_bytes_per_second; /**< The part of it that other copies take: streamed weights. */
    uint64_t copy_latency_ns;                  /**< Latency of each copy. */
    uint64_t to_host_bytes;                    /**< As sh_spiller_options.to_host_bytes. 0: 256 MiB. */
    uint64_t to_device_bytes;                  /**< As sh_spiller_options.to_device_bytes. 0: 256 MiB. */
    uint64_t least_bytes;                      /**< As sh_spiller_options.least_bytes. 0: 4096. */
    uint64_t target_peak_bytes; /**< The plan is the fastest of all plans whose peak is not above this. */
    uint64_t target_step_ns;    /**< The plan has the lowest peak of all plans that take no longer than this. */
} sh_training_step;

#define SH_TRAINING_STEP_INIT \
    { sizeof(sh_training_step), 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0 }
static inline void sh_training_step_init(sh_training_step* step) {
    const sh_training_step initial = SH_TRAINING_STEP_INIT;
    *step = initial;
}

enum {
    SH_FATE_KEEP = 0,     /**< The storage stays on the device. */
    SH_FATE_SPILL = 1,    /**< It leaves after its last use in the forward, and comes back before the backward. */
    SH_FATE_RECOMPUTE = 2 /**< It is dropped after its last use in the forward, and computed again. */
};

/** Cost of a plan, by a simulation of the step, and bounds that no choice can beat. */
typedef struct sh_activation_plan {
    uint32_t struct_size;
    /** 1: the target is met. 0: the plan is the nearest one that was found. No step is shorter than end_ns. */
    uint32_t meets_target;
    uint64_t step_ns;          /**< Length of the step. */
    uint64_t peak_bytes;       /**< Peak of the memory in use. */
    uint64_t plain_peak_bytes; /**< Peak if everything is kept. */
    uint64_t recompute_ns;     /**< Time of computing again, part of step_ns. */
    uint64_t kept_bytes;
    uint64_t spilled_bytes;
    uint64_t recomputed_bytes;
    /** With target_peak_bytes: a step time that no choice can beat. UINT64_MAX: no choice has so low a peak. */
    uint64_t least_step_ns;
    uint64_t least_peak_bytes; /**< With target_step_ns: a peak that no choice can beat. */
} sh_activation_plan;

/**
 * Chooses for each saved storage whether it is kept, spilled or computed again. A simulation of the step judges the
 * choice. It takes into account that only the storages that have left before the memory is fullest lower the peak. The
 * same arguments give the same plan on every machine.
 * @param out_fates Gets one SH_FATE_* for each activation. NULL only without activations.
 * @param out_plan  May be NULL.
 * @retval SH_OK                     The plan is written, even if it misses the target: see meets_target.
 * @retval SH_ERROR_INVALID_ARGUMENT The step is impossible, or it does not have exactly one target. The text names the
 *                                   field. Times and bytes, and their sums, may not be above 2^52. The number of all
 *                                   inputs together may not be above 2^24.
 * @blocks Never. The call computes for up to a second with 20,000 storages, and for half a minute with a million, whose
 *         plan is a rough one.
 * \since 0.2
 */
SH_API SH_MUST_CHECK sh_status sh_plan_activations(const sh_training_step* step, uint32_t* out_fates,
                                                   sh_activation_plan* out_plan);

/**
 * Simulates a step in which each saved storage has a given fate. sh_plan_activations() judges its choices by the same
 * simulation. An engine can use it to compare its own choice with a plan, or to plot the memory over the step.
 * @param step       Has no target_step_ns. The compute waits for copies to the host, and restores wait for room, if
 *                   more memory than target_peak_bytes would be in use. target_peak_bytes 0: nothing waits for room.
 * @param fates      One SH_FATE_* for each activation. NULL: everything is kept.
 * @param out_plan   May be NULL. least_step_ns and least_peak_bytes are 0.
 * @param out_points Gets the first `capacity` points of the memory in use over the step, by time. struct_size is set in
 *                   each. Two points may have the same time. The last point holds until the step's end. NULL if
 *                   `capacity` is 0.
 * @param out_count  Number of points, including those beyond `capacity`. There are at most 8 for each activation and 2
 *                   for each of `others`. May be NULL.
 * @retval SH_OK                     The outputs are written.
 * @retval SH_ERROR_INVALID_ARGUMENT The step is impossible, or a fate is: SH_FATE_RECOMPUTE without
 *                                   SH_ACTIVATION_CHEAP, or SH_FATE_SPILL of fewer than least_bytes, or without a link.
 *                                   The text names it.
 * @blocks Never.
 * \since 0.2
 */
SH_API SH_MUST_CHECK sh_status sh_simulate_activations(const sh_training_step* step, const uint32_t* fates,
                                                       sh_activation_plan* out_plan, sh_memory_point* out_points,
                                                       uint64_t capacity, uint64_t* out_count);

#ifdef __cplusplus
}
#endif

#endif
