// The table that the library gets from this plugin.
#include <new>

#include "control/transport.h"
#include "platform/descriptor.h"
#include "server.h"

namespace stagehand::control {
namespace {

Server& at(void* server) { return *static_cast<Server*>(server); }

sh_status open_server(const TransportHandler* handler, void** out_server) {
    try {
        const platform::StandardNumbersHeld held;  // from the descriptors of Asio
        *out_server = new Server(*handler);
        return SH_OK;
    } catch (const std::bad_alloc&) {
        return SH_ERROR_OUT_OF_HOST_MEMORY;
    } catch (...) {
        return SH_ERROR_IO;
    }
}

constexpr Transport kTransport = {
    .version = kTransportVersion,
    .open = open_server,
    .serve = [](void* server) { at(server).serve(); },
    .work = [](void* server, int32_t lane) { at(server).work(lane); },
    .stop = [](void* server) { at(server).stop(); },
    .close =
        [](void* server) {
            if (!at(server).is_lost()) delete static_cast<Server*>(server);
        },
};

}  // namespace
}  // namespace stagehand::control

extern "C" __attribute__((visibility("default"))) const stagehand::control::Transport* stagehand_control_transport(
    uint32_t version) {
    using namespace stagehand::control;
    return version == kTransportVersion ? &kTransport : nullptr;
}
