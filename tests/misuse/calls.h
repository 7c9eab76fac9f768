// The calls of a table of misuse, by the names of the functions of the C interface.
#pragma once

#include <functional>
#include <map>
#include <string>

#include <stagehand/stagehand.h>

#include "arguments.h"

namespace stagehand::test {

// Returns the call's status, or throws an exception of the binding.
using Calls = std::map<std::string, std::function<sh_status(Arguments&)>>;

const Calls& c_calls();
const Calls& cpp_calls();

}  // namespace stagehand::test
