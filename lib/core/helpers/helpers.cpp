#include "core/helpers/helpers.h"

#include <atomic>
#include <utility>

#include "base/log.h"
#include "base/no_throw.h"

namespace stagehand::core {
namespace {

std::atomic<uint64_t> quiet_ns = 100'000'000;

// A helper's own copies come first: it does not help until it has begun none for a while.
bool is_idle(Device& helper) {
    const uint64_t last = helper.links().to_device.last_use_ns();
    return !last || helper.backend().now_ns() > last + quiet_ns;
}

}  // namespace

void Helpers::set_quiet_ns(uint64_t ns) { quiet_ns = ns; }

Helpers::~Helpers() {
    if (!rest().ok())
        for (Helper& helper : all_)
            if (carrier_.is_open(helper.way)) lose(helper);
    carrier_.remove_relays();
}

Status Helpers::open(const std::string& purpose, uint64_t most_pages) {
    std::vector<std::string> names;
    SH_TRY(device_.helpers(&names));
    double own_link = 0;
    if (!names.empty()) (void)device_.link(most_pages, &own_link).ok();  // nobody helps before it is known
    for (const std::string& name : names) {
        const Status status = no_throw([&] { return add(name, purpose); });
        if (!status.ok())
            log_line(SH_LOG_WARNING, "%s does not help %s: %s", name.c_str(), device_.name().c_str(), status.text());
    }
    return Status();
}

Status Helpers::add(const std::string& name, const std::string& purpose) {
    const sh_device_options options = SH_DEVICE_OPTIONS_INIT;
    std::shared_ptr<Device> device;
    SH_TRY(Device::open(name.c_str(), options, &device));
    Helper helper;
    SH_TRY(device->link(UINT64_MAX, &helper.link));
    helper.copy_ns = device->lone_copy_ns();
    Device& opened = *device;
    helper.buffer = std::make_unique<RelayBuffer>(std::move(device),
                                                  "the buffer that helps " + device_.name() + " (" + purpose + ")");
    all_.reserve(all_.size() + 1);
    SH_TRY(carrier_.add(
        device_.lanes(), std::make_unique<transfer::Relay>(device_.backend(), opened.backend()),
        name + ", which helps " + purpose + " on " + device_.name() + ",", [&opened] { return is_idle(opened); },
        &helper.way));
    all_.push_back(std::move(helper));
    return Status();
}

void Helpers::get_ready() {
    if (all_.empty()) return;
    carrier_.set_own_speed(device_.lanes().rate(transfer::Direction::to_device), device_.lone_copy_ns());
    for (Helper& helper : all_) {
        if (carrier_.is_open(helper.way) || carrier_.has_failed(helper.way)) continue;
        const Status status = no_throw([&] { return get_ready(helper); });
        helper.refused = !status.ok();
        log_line(SH_LOG_INFO, "%s %s %s%s%s", helper.buffer->helper().name().c_str(),
                 helper.refused ? "does not help" : "helps", device_.name().c_str(), helper.refused ? ": " : "",
                 helper.refused ? status.text() : "");
    }
}

Status Helpers::get_ready(Helper& helper) {
    SH_TRY(helper.buffer->take(device_.backend()));
    Status status = carrier_.open_relay(helper.way, device_.lanes(), helper.buffer->helper().lanes(),
                                        helper.buffer->address(), helper.buffer->bytes());
    if (status.ok())
        carrier_.set_speed(helper.way, helper.link, helper.copy_ns);
    else
        (void)helper.buffer->free().ok();
    return status;
}

// The failure of a helper is no failure of this device: it is left out then, and its memory is lost.
Status Helpers::rest() {
    Status status;
    for (Helper& helper : all_) {
        bool over = false;
        Status rested = carrier_.close_relay(helper.way, &over);
        if (rested.ok() && !(over && helper.buffer->free().ok())) lose(helper);
        if (status.ok()) status = std::move(rested);
    }
    return status;
}

void Helpers::lose(Helper& helper) noexcept {
    log_line(SH_LOG_WARNING, "%s helps no more: its memory cannot be given back",
             helper.buffer->helper().name().c_str());
    helper.buffer->abandon();
    carrier_.fail(helper.way);
}

double Helpers::speed() const {
    double speed = 0;
    for (const Helper& helper : all_) {
        if (helper.refused || carrier_.has_failed(helper.way) || !is_idle(helper.buffer->helper())) continue;
        speed += carrier_.is_open(helper.way) ? carrier_.speed(helper.way) : helper.link;
    }
    return speed;
}

}  // namespace stagehand::core
