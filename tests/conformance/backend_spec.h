// Which backends the suite runs on: NAME[:INDEX][,OPTION=VALUE...], e.g. "host", "cuda:1",
// "host,granularity=64KiB,jitter_us=50".
#pragma once

#include <cstdint>
#include <iosfwd>
#include <string>
#include <vector>

namespace conformance {

struct BackendSpec {
    std::string text;  // as it was given
    std::string name;
    uint32_t index = 0;
    std::string options;  // in the form of the interface: "key=value;key=value"
};

// False when the text is not of that form.
bool parse_spec(const std::string& text, BackendSpec* out);

// Those that main() was told. Read by the instantiation of the tests.
std::vector<BackendSpec>& chosen_specs();

// Letters, digits and underscores, as names of tests may have.
std::string test_name(const BackendSpec& spec);

std::ostream& operator<<(std::ostream& out, const BackendSpec& spec);

}  // namespace conformance
