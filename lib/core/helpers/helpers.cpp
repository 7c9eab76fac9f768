#include "core/helpers/helpers.h"

#include <atomic>
#include <utility>

#include "base/log.h"
#include "base/no_throw.h"
#include "core/device/load_carrier.h"

namespace stagehand::core {
namespace {

std::atomic<uint64_t> quiet_ns = 100'000'000;

// A helper's own copies come first: it does not help until it has begun none for a while.
bool is_idle(Device& helper) {
    const uint64_t last = helper.links().to_device.last_use_ns();
    return !last || helper.backend().now_ns() > last + quiet_ns;
}

}  // namespace

std::unique_ptr<transfer::Carrier> make_carrier(Device& device, const std::string& user, uint64_t most_pages) {
    if (!device.has_helpers()) return std::make_unique<transfer::StraightCarrier>(device.backend());
    return std::make_unique<Helpers>(device, user, most_pages);
}

void Helpers::set_quiet_ns(uint64_t ns) { quiet_ns = ns; }

Helpers::Helpers(Device& device, std::string purpose, uint64_t most_pages)
    : HelpedCarrier(device.backend(), std::make_unique<transfer::StraightCarrier>(device.backend())),
      device_(device),
      purpose_(std::move(purpose)),
      most_pages_(most_pages) {}

Helpers::~Helpers() {
    if (!rest().ok())
        for (Helper& helper : all_)
            if (state(helper.way).open) lose(helper);
    remove_relays();
}

Status Helpers::open(transfer::Lanes& lanes) {
    SH_TRY(HelpedCarrier::open(lanes));
    std::vector<std::string> names;
    SH_TRY(device_.helpers(&names));
    double own_link = 0;
    if (!names.empty()) (void)device_.link(most_pages_, &own_link).ok();  // nobody helps before it is known
    for (const std::string& name : names) {
        const Status status = no_throw([&] { return open_helper(name); });
        if (!status.ok())
            log_line(SH_LOG_WARNING, "%s does not help %s: %s", name.c_str(), device_.name().c_str(), status.text());
    }
    return Status();
}

Status Helpers::open_helper(const std::string& name) {
    std::shared_ptr<Device> device;
    SH_TRY(Device::open(name.c_str(), DeviceOptions(), &device));
    Helper helper;
    SH_TRY(device->link(UINT64_MAX, &helper.link));
    helper.copy_ns = device->lone_copy_ns();
    Device& opened = *device;
    helper.buffer = std::make_unique<RelayBuffer>(std::move(device),
                                                  "the buffer that helps " + device_.name() + " (" + purpose_ + ")");
    all_.reserve(all_.size() + 1);
    SH_TRY(add(
        device_.lanes(), std::make_unique<transfer::Relay>(device_.backend(), opened.backend()),
        name + ", which helps " + purpose_ + " on " + device_.name() + ",", [&opened] { return is_idle(opened); },
        &helper.way));
    all_.push_back(std::move(helper));
    return Status();
}

void Helpers::get_ready() {
    if (all_.empty()) return;
    set_own_speed(device_.lanes().rate(transfer::Direction::to_device), device_.lone_copy_ns());
    for (Helper& helper : all_) {
        if (const State now = state(helper.way); now.open || now.failed) continue;
        const Status status = no_throw([&] { return get_ready(helper); });
        helper.refused = !status.ok();
        log_line(SH_LOG_INFO, "%s %s %s%s%s", helper.buffer->helper().name().c_str(),
                 helper.refused ? "does not help" : "helps", device_.name().c_str(), helper.refused ? ": " : "",
                 helper.refused ? status.text() : "");
    }
}

Status Helpers::get_ready(Helper& helper) {
    SH_TRY(helper.buffer->take(device_.backend()));
    Status status = open_relay(helper.way, device_.lanes(), helper.buffer->helper().lanes(), helper.buffer->address(),
                               helper.buffer->bytes());
    if (status.ok())
        set_speed(helper.way, helper.link, helper.copy_ns);
    else
        (void)helper.buffer->free().ok();
    return status;
}

// The failure of a helper is no failure of this device: it is left out then, and its memory is lost.
Status Helpers::rest() {
    Status status;
    for (Helper& helper : all_) {
        bool over = false;
        Status rested = close_relay(helper.way, &over);
        if (rested.ok() && !(over && helper.buffer->free().ok())) lose(helper);
        if (status.ok()) status = std::move(rested);
    }
    return status;
}

void Helpers::lose(Helper& helper) noexcept {
    log_line(SH_LOG_WARNING, "%s helps no more: its memory cannot be given back",
             helper.buffer->helper().name().c_str());
    helper.buffer->abandon();
    fail(helper.way);
}

double Helpers::speed_beside() const {
    double all = 0;
    for (const Helper& helper : all_) {
        const State now = state(helper.way);
        if (helper.refused || now.failed || !is_idle(helper.buffer->helper())) continue;
        all += now.open ? now.bytes_per_ns : helper.link;
    }
    return all;
}

}  // namespace stagehand::core
