// A C++ owner for the control of a device by other processes. stagehand.hpp includes this file.
#ifndef STAGEHAND_CONTROL_HPP
#define STAGEHAND_CONTROL_HPP

#include <string>

#include "device.hpp"
#include "scope.hpp"

namespace stagehand {
inline namespace abi0 {

// Answers requests until it is destroyed. The destructor waits for a pause or a resume that a request has begun. It
// must run before the last reference to the device is closed, and not in a callback of a pause or a resume.
class Control {
public:
    // Of the process, without a device: only its snapshot can be asked for.
    Control() : scope_([&](sh_scope** out) { return sh_control_start(nullptr, nullptr, &info_, out); }) {}
    // A Unix socket at the default path.
    explicit Control(const Device& device)
        : scope_([&](sh_scope** out) { return sh_control_start(device.get(), nullptr, &info_, out); }) {}
    // An empty token: none, which a Unix socket allows.
    Control(const Device& device, const std::string& address, const std::string& token = {})
        : scope_([&](sh_scope** out) {
              sh_control_options options = SH_CONTROL_OPTIONS_INIT;
              options.address = address.c_str();
              options.token = token.empty() ? nullptr : token.c_str();
              return sh_control_start(device.get(), &options, &info_, out);
          }) {}

    const sh_control_info& info() const noexcept { return info_; }
    std::string address() const { return info_.address; }
    // Stops now. The control goes on if this throws.
    void stop() { scope_.end(); }

private:
    sh_control_info info_ = sh_sized<sh_control_info>();
    Scope scope_;
};

}  // namespace abi0
}  // namespace stagehand

#endif
