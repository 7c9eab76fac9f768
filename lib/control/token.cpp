#include "control/token.h"

#include <algorithm>

namespace stagehand::control {
namespace {

constexpr size_t kLeastToken = 16, kLongestToken = 256;
constexpr std::string_view kScheme = "bearer ";

char lower(char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; }

}  // namespace

Status check_token(std::string_view token) {
    // The token itself stays out of the texts.
    if (token.size() < kLeastToken || token.size() > kLongestToken)
        return Status(SH_ERROR_INVALID_ARGUMENT, "options.token has " + std::to_string(token.size()) +
                                                     " characters, not " + std::to_string(kLeastToken) + " to " +
                                                     std::to_string(kLongestToken));
    const auto bad = std::find_if(token.begin(), token.end(), [](char c) { return c <= 0x20 || c >= 0x7f; });
    if (bad == token.end()) return Status();
    return Status(SH_ERROR_INVALID_ARGUMENT, "options.token has a character at " + std::to_string(bad - token.begin()) +
                                                 " that is not visible ASCII");
}

bool has_token(std::string_view authorization, std::string_view token) {
    if (authorization.size() < kScheme.size() || token.empty()) return false;
    for (size_t i = 0; i < kScheme.size(); i++)
        if (lower(authorization[i]) != kScheme[i]) return false;
    const std::string_view given = authorization.substr(kScheme.size());
    // Volatile, so that the compiler does not end the loop at the first difference.
    volatile unsigned char difference = given.size() == token.size() ? 0 : 1;
    for (size_t i = 0; i < given.size(); i++)
        difference = static_cast<unsigned char>(difference | (given[i] ^ token[i % token.size()]));
    return difference == 0;
}

}  // namespace stagehand::control
