#include "core/device/helpers.h"

#include <algorithm>
#include <atomic>
#include <utility>

#include "base/log.h"
#include "base/no_throw.h"

namespace stagehand::core {
namespace {

std::atomic<uint64_t> quiet_ns = 100'000'000;

}  // namespace

void Helpers::set_quiet_ns(uint64_t ns) { quiet_ns = ns; }

Helpers::~Helpers() {
    if (rest().ok()) return;
    for (Helper& helper : all_)
        if (bond_.is_open(helper.way)) lose(helper);
}

Status Helpers::open(const std::string& purpose, uint64_t most_pages) {
    std::vector<std::string> names;
    SH_TRY(device_.helpers(&names));
    std::erase_if(names, [&](const std::string& name) {
        return std::ranges::any_of(all_, [&](const Helper& helper) { return helper.name == name; }) ||
               std::ranges::find(refused_, name) != refused_.end();
    });
    if (names.empty()) return Status();
    double own_link = 0;
    (void)device_.link(most_pages, &own_link).ok();  // nobody helps before it is known
    SH_TRY(bond_.open(device_.lanes()));
    for (const std::string& name : names) {
        const Status status = no_throw([&] { return add(name, purpose); });
        if (status.ok()) continue;
        refused_.push_back(name);
        log_line(SH_LOG_WARNING, "%s does not help %s: %s", name.c_str(), device_.name().c_str(), status.text());
    }
    return Status();
}

Status Helpers::add(const std::string& name, const std::string& purpose) {
    const sh_device_options options = SH_DEVICE_OPTIONS_INIT;
    std::shared_ptr<Device> device;
    SH_TRY(Device::open(name.c_str(), options, &device));
    Helper helper;
    helper.name = name;
    SH_TRY(device->link(UINT64_MAX, &helper.link));
    helper.copy_ns = device->lone_copy_ns();
    BackendDevice& backend = device->backend();
    helper.buffer = std::make_unique<RelayBuffer>(std::move(device),
                                                  "the buffer that helps " + device_.name() + " (" + purpose + ")");
    all_.reserve(all_.size() + 1);
    helper.way = bond_.add(std::make_unique<transfer::Relay>(device_.backend(), backend),
                           name + ", which helps " + purpose + " on " + device_.name() + ",");
    all_.push_back(std::move(helper));
    return Status();
}

void Helpers::get_ready() {
    for (Helper& helper : all_) {
        if (bond_.is_open(helper.way) || bond_.has_failed(helper.way)) continue;
        const Status status = no_throw([&] { return get_ready(helper); });
        helper.refused = !status.ok();
        log_line(SH_LOG_INFO, "%s %s %s%s%s", helper.buffer->helper().name().c_str(),
                 helper.refused ? "does not help" : "helps", device_.name().c_str(), helper.refused ? ": " : "",
                 helper.refused ? status.text() : "");
    }
}

Status Helpers::get_ready(Helper& helper) {
    SH_TRY(helper.buffer->take(device_.backend()));
    Status status = bond_.open_way(helper.way, device_.lanes(), helper.buffer->helper().lanes(),
                                   helper.buffer->address(), helper.buffer->bytes());
    if (status.ok())
        bond_.set_speed(helper.way, helper.link, helper.copy_ns);
    else
        (void)helper.buffer->free().ok();
    return status;
}

// The failure of a helper is no failure of this device: it is left out then, and its memory is lost.
Status Helpers::rest() {
    Status status;
    for (Helper& helper : all_) {
        bool over = false;
        Status rested = bond_.close_way(helper.way, &over);
        if (rested.ok() && !(over && helper.buffer->free().ok())) lose(helper);
        if (status.ok()) status = std::move(rested);
    }
    return status;
}

void Helpers::lose(Helper& helper) noexcept {
    log_line(SH_LOG_WARNING, "%s helps no more: its memory cannot be given back",
             helper.buffer->helper().name().c_str());
    helper.buffer->abandon();
    bond_.fail(helper.way);
}

// A helper's own copies come first: it does not help until it has begun none for a while.
bool Helpers::is_idle(Device& helper) const {
    const uint64_t last = helper.links().to_device.last_use_ns();
    return !last || helper.backend().now_ns() > last + quiet_ns;
}

void Helpers::choose() noexcept {
    if (bond_.own_speed() <= 0)
        bond_.set_own_speed(device_.lanes().rate(transfer::Direction::to_device), device_.lone_copy_ns());
    for (Helper& helper : all_) bond_.use(helper.way, is_idle(helper.buffer->helper()));
}

double Helpers::speed() {
    choose();
    double speed = 0;
    for (Helper& helper : all_) {
        if (helper.refused || bond_.has_failed(helper.way) || !is_idle(helper.buffer->helper())) continue;
        speed += bond_.is_open(helper.way) ? bond_.speed(helper.way) : helper.link;
    }
    return speed;
}

uint64_t Helpers::bytes() const {
    uint64_t bytes = 0;
    for (const Helper& helper : all_) bytes += bond_.bytes(helper.way);
    return bytes;
}

}  // namespace stagehand::core
