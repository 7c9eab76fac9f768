#include "backend_spec.h"

#include <cctype>
#include <charconv>
#include <ostream>

namespace conformance {

bool parse_spec(const std::string& text, BackendSpec* out) {
    BackendSpec spec;
    spec.text = text;
    const size_t comma = text.find(',');
    const std::string device = text.substr(0, comma);
    if (comma != std::string::npos) {
        spec.options = text.substr(comma + 1);
        for (char& c : spec.options) c = c == ',' ? ';' : c;
    }
    const size_t colon = device.find(':');
    spec.name = device.substr(0, colon);
    if (spec.name.empty()) return false;
    if (colon != std::string::npos) {
        const char* const end = device.data() + device.size();
        const auto [rest, error] = std::from_chars(device.data() + colon + 1, end, spec.index);
        if (error != std::errc() || rest != end) return false;
    }
    *out = spec;
    return true;
}

std::vector<BackendSpec>& chosen_specs() {
    static std::vector<BackendSpec> specs;
    return specs;
}

std::string test_name(const BackendSpec& spec) {
    std::string name;
    for (const char c : spec.text) name += std::isalnum(static_cast<unsigned char>(c)) ? c : '_';
    return name;
}

std::ostream& operator<<(std::ostream& out, const BackendSpec& spec) { return out << spec.text; }

}  // namespace conformance
