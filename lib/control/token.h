// The token of a control: which ones are allowed, and whether a request has it.
#pragma once

#include <string>
#include <string_view>

#include "base/status.h"

namespace stagehand::control {

Status check_token(std::string_view token);

// Whether the header "Authorization" has the token. The time that this takes depends on the sizes, and not on the
// characters, so that nobody finds the token letter by letter.
bool has_token(std::string_view authorization, std::string_view token);

}  // namespace stagehand::control
