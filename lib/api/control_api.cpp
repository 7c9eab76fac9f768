// The control of a device, or of the process alone, by other processes.
#include "api/control_api.h"

#include <cstdlib>
#include <cstring>
#include <mutex>

#include <unistd.h>

#include "api/guard.h"
#include "api/process_snapshot.h"
#include "api/scopes.h"
#include "base/log.h"
#include "control/control.h"
#include "control/token.h"

using namespace stagehand;
using namespace stagehand::api;

namespace {

// Turns the failure of a call of the interface on this thread into a Status.
Status status_of(sh_status code) {
    if (code >= 0) return Status(code);
    std::string text(last_error(nullptr, 0), '\0');
    last_error(text.data(), text.size() + 1);
    return Status(code, text);
}

// A device by its handle, which may be closed at any time. Its calls are those of the interface.
class DeviceByHandle final : public control::Occupant {
public:
    DeviceByHandle(sh_device* handle, std::string name) : handle_(handle), name_(std::move(name)) {}

    std::string name() const override { return name_; }

    Status change(const control::Order& order, sh_occupancy_change* out) override {
        std::vector<const char*> tags;
        for (const std::string& tag : order.tags) tags.push_back(tag.c_str());
        const uint32_t flags = SH_OCCUPANCY_NO_WAIT | (order.if_needed ? SH_OCCUPANCY_REPEAT : 0);
        if (order.resumes) {
            sh_resume_options options = SH_RESUME_OPTIONS_INIT;
            options.flags = flags;
            options.tags = tags.data();
            options.tag_count = tags.size();
            return status_of(sh_resume(handle_, &options, out));
        }
        sh_pause_options options = SH_PAUSE_OPTIONS_INIT;
        options.flags = flags;
        options.tags = tags.data();
        options.tag_count = tags.size();
        options.contents = order.contents;
        return status_of(sh_pause(handle_, &options, out));
    }

    Status total(sh_occupancy_info* out) override { return status_of(sh_occupancy_get_info(handle_, nullptr, out)); }

    Status tags(std::vector<sh_occupancy_info>* out) override {
        uint64_t count = 0;
        SH_TRY(status_of(sh_occupancy_list(handle_, nullptr, 0, &count)));
        out->assign(count, sh_sized<sh_occupancy_info>());
        SH_TRY(status_of(sh_occupancy_list(handle_, out->data(), out->size(), &count)));
        out->resize(std::min<uint64_t>(count, out->size()));  // a tag may have come meanwhile
        return Status();
    }

    Status memory(sh_memory_info* out) override { return status_of(sh_device_get_memory(handle_, out)); }

    std::vector<telemetry::RuntimeReading> runtimes() override {
        std::shared_ptr<core::Device> device;
        return find_device(handle_, &device).ok() ? runtimes_of(*device) : std::vector<telemetry::RuntimeReading>();
    }

private:
    sh_device* const handle_;
    const std::string name_;
};

Status choose_address(const sh_control_options& options, const std::string& device, control::Address* out) {
    if (options.address) return control::read_address(options.address, out);
    return control::default_socket_path(control::default_file(getpid(), device), &out->path);
}

Status check_options(const sh_control_options& options, const control::Address& address) {
    if (options.reserved) return Status(SH_ERROR_INVALID_ARGUMENT, "options.reserved is not 0");
    if (options.token) return control::check_token(options.token);
    if (!address.is_tcp()) return Status();
    return Status(SH_ERROR_INVALID_ARGUMENT, "options.address \"" + address.text() +
                                                 "\" is a TCP port, and options.token is NULL: every user of "
                                                 "the machine could release the memory");
}

void describe(const control::Address& from, sh_control_info* info) {
    const std::string text = from.text();
    const size_t bytes = std::min(sizeof info->address - 1, text.size());
    std::memset(info->address, 0, sizeof info->address);
    std::memcpy(info->address, text.data(), bytes);
    info->port = from.port;
}

// The device's name; empty for the process alone.
Status find_name(sh_device* device, std::string* out) {
    if (!device) {
        devices();  // from here on a fork is noticed
        return Status();
    }
    std::shared_ptr<core::Device> found;  // the control does not keep the device open
    SH_TRY(find_device(device, &found));
    *out = found->name();
    return Status();
}

// Listens where `place` says until the process ends: "1", or a path.
Status start_at(const char* place) {
    control::Address address;
    if (std::strcmp(place, "1") != 0)
        address.path = place;
    else
        SH_TRY(control::default_socket_path(control::default_file(getpid(), ""), &address.path));
    static auto* const kept = new std::shared_ptr<control::Control>;  // never destroyed: it has threads
    return control::Control::start(address, nullptr, process_snapshot, "", kept);
}

}  // namespace

void stagehand::api::control_start_from_environment() {
    static std::once_flag once;
    std::call_once(once, [] {
        const char* const place = secure_getenv("STAGEHAND_MONITOR");
        if (!place || !*place) return;
        if (const Status status = start_at(place); !status.ok())
            log_line(SH_LOG_WARNING, "STAGEHAND_MONITOR: %s", status.text());
    });
}

extern "C" {

sh_status sh_control_start(sh_device* device, const sh_control_options* options, sh_control_info* out_info,
                           sh_scope** out_scope) {
    return guarded([&] {
        std::string name;
        SH_TRY(find_name(device, &name));
        if (!out_scope) return Status(SH_ERROR_INVALID_ARGUMENT, "out_scope is NULL");
        if (out_info) SH_TRY(check_struct(out_info, "out_info"));
        sh_control_options wanted;
        SH_TRY(take_options(options, "options", &wanted));
        control::Address address;
        SH_TRY(choose_address(wanted, name, &address));
        SH_TRY(check_options(wanted, address));
        const auto made = std::make_shared<std::shared_ptr<control::Control>>();
        const auto end = [made] {
            if ((*made)->is_calling())
                return Status(SH_ERROR_INVALID_STATE, "a callback of a request of this control must not stop it");
            made->reset();
            return Status();
        };
        const auto begin = [&] {
            std::unique_ptr<control::Occupant> occupant;
            if (device) occupant = std::make_unique<DeviceByHandle>(device, name);
            SH_TRY(control::Control::start(address, std::move(occupant), process_snapshot,
                                           wanted.token ? wanted.token : "", made.get()));
            Output<sh_control_info> info(out_info);
            describe((*made)->address(), info.get());
            info.give();
            return Status();
        };
        return open_scope(out_scope, end, begin, true);
    });
}

}  // extern "C"
