// once_more: for calls that give something back. A driver may let any call fail for something that went wrong before it; what is to
// be given back must not be lost to that.
#pragma once

#include "base/status.h"

namespace stagehand::core {

template <class Call>
Status once_more(Call&& call) {
    Status status = call();
    return status.ok() ? status : call();
}

}  // namespace stagehand::core
