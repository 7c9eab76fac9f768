// The backends that the suite runs on: NAME[:INDEX][,OPTION=VALUE...], e.g. "host", "cuda:1",
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

// Returns false if the text does not have that form.
bool parse_spec(const std::string& text, BackendSpec* out);

// The specifications that main() got. The instantiation of the tests reads them.
std::vector<BackendSpec>& chosen_specs();

// Returns a name of letters, digits and underscores, as names of tests require.
std::string test_name(const BackendSpec& spec);

std::ostream& operator<<(std::ostream& out, const BackendSpec& spec);

}  // namespace conformance
