/*
 * Control (experimental: see base.h): other processes see what a process does, release the memory of sh_alloc() and of
 * runtimes, and bring it back, by HTTP.
 *
 * sh_control_start() makes a process answer requests on a Unix socket, or on a TCP port of the loopback interface.
 * /snapshot tells the figures of all devices and runtimes of the process, which `stagehand top` shows. The requests to
 * a device are those that inference servers use for the purpose: /release_memory_occupation and
 * /resume_memory_occupation, /sleep, /wake_up and /is_sleeping, and /memory and /metrics. docs/control.md describes
 * them. The command `stagehand release` sends such requests. Nothing answers unless a program calls sh_control_start(),
 * or the user sets STAGEHAND_MONITOR.
 *
 * A request pauses and resumes as sh_pause() and sh_resume() do, on a thread of the library. Callbacks of
 * sh_occupancy_add_callbacks() run on that thread. An engine ends its work on the device in these callbacks.
 */
#ifndef STAGEHAND_CONTROL_H
#define STAGEHAND_CONTROL_H

#include "base.h"

#ifdef __cplusplus
extern "C" {
#endif

/** The address that requests come to, and the token that they must have. */
typedef struct sh_control_options {
    uint32_t struct_size;
    uint32_t reserved;
    /** The path of a Unix socket, absolute or with "unix:" before it, at most 107 bytes. Or "127.0.0.1:PORT",
        "localhost:PORT" or "[::1]:PORT": a TCP port, 0 for a free one. Other addresses are refused. NULL:
        "stagehand/<process id>.<device>.control" in $XDG_RUNTIME_DIR, without a device "stagehand/<process id>.sock".
        If $XDG_RUNTIME_DIR is not a folder that only the user can write to, the folder is "stagehand-<user id>" in
        /tmp. The library creates the folder. An existing one must be a real folder, belong to the user, and be closed
        to others. */
    const char* address;
    /** Each request must have the header "Authorization: Bearer <token>". 16 to 256 letters, digits and other visible
        characters of ASCII. Required for TCP. NULL on a Unix socket: only the user who runs the process, and root, can
        connect, and requests need no token. */
    const char* token;
} sh_control_options;

#define SH_CONTROL_OPTIONS_INIT \
    { sizeof(sh_control_options), 0, 0, 0 }
static inline void sh_control_options_init(sh_control_options* options) {
    const sh_control_options initial = SH_CONTROL_OPTIONS_INIT;
    *options = initial;
}

/** The address at which a control answers. */
typedef struct sh_control_info {
    uint32_t struct_size;
    uint32_t port;     /**< The TCP port. 0: a Unix socket. */
    char address[128]; /**< The path of the Unix socket, or the address with its port, for example "127.0.0.1:8431". */
} sh_control_info;

/**
 * Begins to answer requests. The server is a plugin, "libstagehand-control.so". The library looks for the plugin in the
 * same places as for backends. One thread of the library waits for requests, one reads figures, and for a device four
 * pause and resume. /snapshot takes each runtime's lock while it reads the counters. At most 32 clients are connected
 * at a time. A client that sends its request too slowly, or sends none, makes way for others.
 *
 * A socket that an ended process left at the path is replaced. Any other file is an error. The end of the process
 * removes the socket. A forked child does not answer. Requests get an error after the device is closed.
 *
 * The end of the scope closes all connections, and removes the socket. Requests that have begun to pause or resume go
 * on to their end, and it waits for them; requests that have not begun do nothing. In a callback of
 * sh_occupancy_add_callbacks() during a request of this control, sh_scope_end() returns SH_ERROR_INVALID_STATE, and the
 * control goes on.
 *
 * The variable STAGEHAND_MONITOR=path makes a process answer without a device from the first device on until it ends,
 * and STAGEHAND_MONITOR=1 does so at the default path.
 * @param device    NULL: requests can only ask for the snapshot of the process.
 * @param options   NULL: a Unix socket at the default path.
 * @param out_info  May be NULL.
 * @param out_scope sh_scope_end() ends the control. Must not be NULL.
 * @retval SH_OK                     Requests are answered.
 * @retval SH_ERROR_INVALID_ARGUMENT The address is none of those above, there is no token for TCP, or the token has a
 *                                   wrong size or character. The text has the address.
 * @retval SH_ERROR_IO               The socket could not be made. The text names the fault.
 * @retval SH_ERROR_BACKEND_LOAD     The plugin is not installed, or cannot be loaded. The text lists the files that
 *                                   were tried.
 * @experimental
 * @blocks While it loads the plugin, and for a second at most while another process locks the socket's folder.
 * \since 0.2
 */
SH_API SH_MUST_CHECK sh_status sh_control_start(sh_device* device, const sh_control_options* options,
                                                sh_control_info* out_info, sh_scope** out_scope);

#ifdef __cplusplus
}
#endif

#endif
