/*
 * Helpers (experimental: see base.h): devices whose links bring a part of the weights of another device.
 */
#ifndef STAGEHAND_HELPERS_H
#define STAGEHAND_HELPERS_H

#include "base.h"

#ifdef __cplusplus
extern "C" {
#endif

enum {
    /** The device's own link may bring weights of others of its backend whose `devices` are "auto". A later opening
        must not have the flag if the device is open without it. @experimental */
    SH_HELPS_OTHERS = 1
};

/** Other devices that bring weights, and whether the device brings those of others: sh_device_options.helpers. */
typedef struct sh_helper_options {
    uint32_t struct_size;
    uint32_t flags; /**< SH_HELPS_OTHERS or 0. */
    /** Devices of the same backend whose links bring a part of the weights, such as "cuda:1,cuda:2", without spaces.
        "auto": all such devices that are open in this process with SH_HELPS_OTHERS when a runtime is created. That call
        opens a device that is not open yet, with default options. Open it earlier to choose its options, because a
        later opening cannot change its budget or flags.

        Each runtime takes a sixteenth of such a device's budget, at most 48 MiB rounded up to whole pages, while it
        streams. A device with a budget of less than 96 MiB brings nothing, and one that has begun copies of its own to
        itself within the last tenth of a second is left alone. One that cannot be opened, has no memory to spare or
        fails is left out, and the log has the reason. A runtime does not try again to open one.

        Weights that a device was bringing when it failed may have been wrong. They are loaded again, and the next call
        on the runtime that may return SH_ERROR_BACKEND does so once. Results since sh_runtime_synchronize() last
        returned SH_OK may be wrong then: release all views, and give these results up (docs/concepts.md). A device that
        has failed, and does not say so, may also read memory of sources after they are replaced or unregistered. The
        library then keeps its own copies for good.

        Copies of at least 2 MiB from pinned memory are divided among the links. A piece of another source, or a batch
        of packed weights, comes whole over one of them. All other copies, and those of captured graphs, use the
        device's own link. The text is copied. NULL, "": none. @experimental \since 0.2 */
    const char* devices;
} sh_helper_options;

#define SH_HELPER_OPTIONS_INIT \
    { sizeof(sh_helper_options), 0, 0 }
static inline void sh_helper_options_init(sh_helper_options* options) {
    const sh_helper_options initial = SH_HELPER_OPTIONS_INIT;
    *options = initial;
}

#ifdef __cplusplus
}
#endif

#endif
