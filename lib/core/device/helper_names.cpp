#include "core/device/helper_names.h"

#include <algorithm>

#include "base/number.h"

namespace stagehand::core {
namespace {

Status bad_helpers(const std::string& given, const std::string& why) {
    return Status(SH_ERROR_INVALID_ARGUMENT, "options.helpers is \"" + given + "\": " + why);
}

// "cuda" is "cuda:0", so that each device has one name.
Status complete(const std::string& name, std::string* out) {
    std::string backend;
    uint32_t index = 0;
    SH_TRY(split_name(name, &backend, &index));
    *out = backend + ":" + std::to_string(index);
    return Status();
}

}  // namespace

Status split_name(const std::string& name, std::string* backend, uint32_t* index) {
    const size_t colon = name.find(':');
    *backend = name.substr(0, colon);
    *index = 0;
    if (colon == std::string::npos && !backend->empty()) return Status();
    const std::string digits = colon == std::string::npos ? "" : name.substr(colon + 1);
    const std::optional<uint32_t> number = digits.size() <= 4 ? read_number<uint32_t>(digits) : std::nullopt;
    if (backend->empty() || !number)
        return Status(SH_ERROR_INVALID_ARGUMENT, "device name \"" + name + "\" is not of the form backend:number");
    *index = *number;
    return Status();
}

Status split_helpers(const std::string& text, std::vector<std::string>* out) {
    for (size_t begin = 0; !text.empty() && begin <= text.size();) {
        const size_t end = std::min(text.find(',', begin), text.size());
        SH_TRY(complete(text.substr(begin, end - begin), &out->emplace_back()));
        begin = end + 1;
    }
    return Status();
}

Status check_helpers(const char* helpers, const std::string& device_name, const BackendDevice& device) {
    if (!helpers || !*helpers) return Status();
    const std::string given = helpers;
    if (!device.has(SH_BACKEND_PEERS))
        return Status(SH_ERROR_UNSUPPORTED,
                      "options.helpers: devices of backend " + std::string(device.name()) + " cannot help each other");
    if (given == kAnyHelper) return Status();
    std::vector<std::string> names;
    if (const Status split = split_helpers(given, &names); !split.ok()) return bad_helpers(given, split.text());
    uint32_t count = 0;
    if (device.table().probe(&count) < 0) count = 0;
    for (size_t i = 0; i < names.size(); i++) {
        std::string backend;
        uint32_t index = 0;
        SH_TRY(split_name(names[i], &backend, &index));
        if (backend != device.name())
            return bad_helpers(given, names[i] + " is of another backend than " + device_name);
        if (names[i] == device_name) return bad_helpers(given, "a device cannot help itself");
        if (index >= count) return bad_helpers(given, "there is no device " + names[i]);
        if (std::find(names.begin(), names.begin() + static_cast<ptrdiff_t>(i), names[i]) !=
            names.begin() + static_cast<ptrdiff_t>(i))
            return bad_helpers(given, names[i] + " is named twice");
    }
    return Status();
}

}  // namespace stagehand::core
