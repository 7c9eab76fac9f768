// HelperNames: the names of the devices that help another one to load, as its options have them.
#pragma once

#include <string>
#include <vector>

#include "backend/backend_device.h"
#include "base/status.h"

namespace stagehand::transfer {

class HelperNames {
public:
    // `text`: names like "cuda:1,cuda:2", or "auto" for all open devices of the backend that consent. NULL: none.
    explicit HelperNames(const char* text) : text_(text ? text : "") {}

    // Returns an error that names what is wrong for the device with this name.
    Status check(const std::string& device_name, const BackendDevice& device) const;
    // The open device has these names. Returns an error if others are given for it. None are always right.
    Status check_reopened(const std::string& device_name, const char* given) const;
    bool empty() const { return text_.empty(); }
    bool are_all_that_consent() const { return text_ == "auto"; }
    // Each as "cuda:1", in their order.
    Status list(std::vector<std::string>* out) const;

private:
    Status bad(const std::string& why) const;

    std::string text_;
};

}  // namespace stagehand::transfer
