#include "transfer/carrier/helper_names.h"

#include <algorithm>

#include "backend/device_name.h"

namespace stagehand::transfer {
namespace {

// "cuda" is "cuda:0", so that each device has one name.
Status complete(const std::string& name, std::string* out) {
    std::string backend;
    uint32_t index = 0;
    SH_TRY(split_name(name, &backend, &index));
    *out = backend + ":" + std::to_string(index);
    return Status();
}

}  // namespace

Status HelperNames::bad(const std::string& why) const {
    return Status(SH_ERROR_INVALID_ARGUMENT, "options.helpers.devices is \"" + text_ + "\": " + why);
}

Status HelperNames::list(std::vector<std::string>* out) const {
    for (size_t begin = 0; !text_.empty() && begin <= text_.size();) {
        const size_t end = std::min(text_.find(',', begin), text_.size());
        SH_TRY(complete(text_.substr(begin, end - begin), &out->emplace_back()));
        begin = end + 1;
    }
    return Status();
}

Status HelperNames::check(const std::string& device_name, const BackendDevice& device) const {
    if (text_.empty()) return Status();
    if (!device.has(SH_BACKEND_PEERS))
        return Status(SH_ERROR_UNSUPPORTED, "options.helpers.devices: devices of backend " +
                                                std::string(device.name()) + " cannot help each other");
    if (are_all_that_consent()) return Status();
    std::vector<std::string> names;
    if (const Status split = list(&names); !split.ok()) return bad(split.text());
    uint32_t count = 0;
    if (device.table().probe(&count) < 0) count = 0;
    for (size_t i = 0; i < names.size(); i++) {
        std::string backend;
        uint32_t index = 0;
        SH_TRY(split_name(names[i], &backend, &index));
        if (backend != device.name()) return bad(names[i] + " is of another backend than " + device_name);
        if (names[i] == device_name) return bad("a device cannot help itself");
        if (index >= count) return bad("there is no device " + names[i]);
        if (std::find(names.begin(), names.begin() + static_cast<ptrdiff_t>(i), names[i]) !=
            names.begin() + static_cast<ptrdiff_t>(i))
            return bad(names[i] + " is named twice");
    }
    return Status();
}

Status HelperNames::check_reopened(const std::string& device_name, const char* given) const {
    if (!given || !*given || text_ == given) return Status();
    return Status(SH_ERROR_INVALID_ARGUMENT, device_name + " is open with " +
                                                 (text_.empty() ? "no helpers" : "helpers " + text_) + ": helpers " +
                                                 given + " contradict it");
}

}  // namespace stagehand::transfer
