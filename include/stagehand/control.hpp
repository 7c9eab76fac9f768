// A C++ owner for the control of a device by other processes. stagehand.hpp includes this file.
#ifndef STAGEHAND_CONTROL_HPP
#define STAGEHAND_CONTROL_HPP

#include <string>
#include <utility>

#include "device.hpp"
#include "error.hpp"

namespace stagehand {
inline namespace abi0 {

// Answers requests until it is destroyed. The destructor waits for a pause or a resume that a request has begun. It
// must run before the last reference to the device is closed, and not in a callback of a pause or a resume.
class Control {
public:
    // A Unix socket at the default path.
    explicit Control(const Device& device) { check(sh_control_start(device.get(), nullptr, &control_)); }
    // An empty token: none, which a Unix socket allows.
    Control(const Device& device, const std::string& address, const std::string& token = {}) {
        sh_control_options options = SH_CONTROL_OPTIONS_INIT;
        options.address = address.c_str();
        options.token = token.empty() ? nullptr : token.c_str();
        check(sh_control_start(device.get(), &options, &control_));
    }
    Control(Control&& other) noexcept : control_(other.release()) {}
    Control& operator=(Control&& other) noexcept {
        if (this != &other) {
            ignore(sh_control_stop(control_));
            control_ = other.release();
        }
        return *this;
    }
    ~Control() { ignore(sh_control_stop(control_)); }

    sh_control* get() const noexcept { return control_; }
    // Gives the control to the caller, who stops it.
    sh_control* release() noexcept { return std::exchange(control_, nullptr); }

    sh_control_info info() const {
        sh_control_info info = SH_CONTROL_INFO_INIT;
        check(sh_control_get_info(control_, &info));
        return info;
    }
    std::string address() const { return info().address; }
    // Stops now. The owner keeps the control if this throws.
    void stop() {
        check(sh_control_stop(control_));
        control_ = nullptr;
    }

private:
    sh_control* control_ = nullptr;
};

}  // namespace abi0
}  // namespace stagehand

#endif
