#include "transfer/carrier/issue.h"

namespace stagehand::transfer {
namespace {

Status wait(BackendDevice& device, sh_stream stream, Waits waits, std::span<const sh_backend_event> events,
            WaitSet* waited) {
    for (uint32_t i = waits.first; i < waits.first + waits.count; i++) {
        if (waited->has(i)) continue;
        if (events[i]) SH_TRY(device.stream_wait_event(stream, events[i]));
        waited->add(i);
    }
    return Status();
}

Status copy(BackendDevice& device, sh_stream stream, const Command& command) {
    void* const host = reinterpret_cast<void*>(command.other);
    switch (command.kind) {
        case Command::Kind::to_device:
            return device.copy_to_device(stream, command.device, host, command.bytes);
        case Command::Kind::on_device:
            return device.copy_on_device(stream, command.device, command.other, command.bytes);
        case Command::Kind::to_host:
            return device.copy_to_host(stream, host, command.device, command.bytes);
    }
    return Status(SH_ERROR_INTERNAL, "a copy command has an unknown kind");
}

}  // namespace

Status issue(BackendDevice& device, sh_stream stream, std::span<const Command> commands,
             std::span<const sh_backend_event> events, WaitSet* waited, Issued* out, CopyMeter* meter) {
    for (size_t i = 0; i < commands.size();) {
        Command whole = commands[i];
        SH_TRY(wait(device, stream, whole.waits, events, waited));
        for (i++; i < commands.size() && commands[i].joins && waited->has_all(commands[i].waits); i++)
            whole.bytes += commands[i].bytes;
        if (whole.bytes == 0) continue;
        const bool timed = meter && whole.kind != Command::Kind::on_device && meter->begin(stream, whole.bytes);
        SH_TRY(copy(device, stream, whole));
        if (timed) meter->end(stream);
        out->commands++;
        out->bytes += whole.bytes;
    }
    return Status();
}

}  // namespace stagehand::transfer
